"""`least_bottleneck`: the smallest bottleneck in any search model, one device per stage, by asking for every stage.

    D[n, J] = min over ideals I within J of max( D[n - 1, I], seconds(J \\ I) )

Plain where `ideal_dp` is fast: it knows nothing of the model but `StageCost.seconds`, so that it takes every model and
option (overflow streaming) and checks the others. Exact. O(ideals^2) prices, O(ideals^2 * devices) steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.costs.stage_costs.base import StageCost, StageShape
from planner.ideals import Groups, enumerate_ideals

MAX_IDEALS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckPlan:
    """Stages in pipeline order and the largest seconds among them."""

    stages: tuple[StageShape, ...]
    value_s: float


def least_bottleneck(cost: StageCost, groups: Groups, num_devices: int) -> BottleneckPlan | None:
    """The best division into at most `num_devices` stages; None when no stage fits. LimitError: too many ideals."""
    ideals = enumerate_ideals(groups, MAX_IDEALS)
    seconds = np.full((len(ideals), len(ideals)), math.inf)
    for i, low in enumerate(ideals):
        for j in range(i + 1, len(ideals)):
            if not low & ~ideals[j]:
                seconds[i, j] = cost.seconds(_shape(low, ideals[j]))
    reached = np.full(len(ideals), math.inf)
    reached[0] = 0.0
    came: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
    for _ in range(num_devices):
        through = np.maximum(reached[:, None], seconds)
        through[range(len(ideals)), range(len(ideals))] = reached
        came.append(through.argmin(axis=0))
        reached = through.min(axis=0)
    if not math.isfinite(reached[-1]):
        return None
    stages, j = list[StageShape](), len(ideals) - 1
    for before in reversed(came):
        i = int(before[j])
        stages += [_shape(ideals[i], ideals[j])] if i != j else []
        j = i
    return BottleneckPlan(stages=tuple(reversed(stages)), value_s=float(reached[-1]))


def _shape(low: int, high: int) -> StageShape:
    return StageShape(layers=high & ~low, before=low, first=not low)
