"""`least_bottleneck`: the smallest bottleneck in any search model, by asking for every stage.

    D[n, J] = min over ideals I within J, degrees r <= most of max( D[n - r, I], seconds(J \\ I, r) )

with n the devices and one device per stage unless larger degrees are allowed.

Plain where `ideal_dp` is fast: it knows nothing of the model but `StageCost.seconds`, so that it takes every model and
option (overflow streaming) and checks the others. Exact. O(ideals^2) prices and O(ideals^2 * devices) steps per degree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.stage_costs.base import StageCost, StageShape
from planner.ideals import Groups, enumerate_ideals

Array = NDArray[Any]
MAX_IDEALS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckPlan:
    """Stages in pipeline order and the largest seconds among them."""

    stages: tuple[StageShape, ...]
    value_s: float


def least_bottleneck(
    cost: StageCost, groups: Groups, num_devices: int, *, most_replicas: int = 1
) -> BottleneckPlan | None:
    """The best division into stages on at most `num_devices` devices; None when no stage fits. LimitError: too many
    ideals.
    """
    ideals = enumerate_ideals(groups, MAX_IDEALS)
    degrees = range(1, min(most_replicas, num_devices) + 1)
    seconds = {r: _seconds(cost, ideals, r) for r in degrees}
    start = np.full(len(ideals), math.inf)
    start[0] = 0.0
    reached, came = [start], list[list[_Origin]]()
    for n in range(1, num_devices + 1):
        value, origin = _extend(reached, seconds, n)
        reached.append(value)
        came.append(origin)
    if not math.isfinite(reached[-1][-1]):
        return None
    return BottleneckPlan(stages=_stages(ideals, came), value_s=float(reached[-1][-1]))


_Origin = tuple[int, int]
"""Column of the ideal before the last stage, and its degree; degree 0: one device less does as well."""


def _seconds(cost: StageCost, ideals: Sequence[int], degree: int) -> Array:
    """[i, j]: seconds of the stage between two ideals."""
    seconds = np.full((len(ideals), len(ideals)), math.inf)
    for i, low in enumerate(ideals):
        for j in range(i + 1, len(ideals)):
            if not low & ~ideals[j]:
                seconds[i, j] = cost.seconds(_shape(low, ideals[j], degree))
    return seconds


def _extend(reached: list[Array], seconds: dict[int, Array], n: int) -> tuple[Array, list[_Origin]]:
    """D[n] from those with fewer devices, and where it came from."""
    best = reached[n - 1].copy()
    origin: list[_Origin] = [(j, 0) for j in range(len(best))]
    for r, of in seconds.items():
        if r > n:
            break
        through = np.maximum(reached[n - r][:, None], of)
        value, before = through.min(axis=0), through.argmin(axis=0)
        for j in np.flatnonzero(value < best):
            best[j], origin[j] = value[j], (int(before[j]), r)
    return best, origin


def _stages(ideals: Sequence[int], came: list[list[_Origin]]) -> tuple[StageShape, ...]:
    stages, j, n = list[StageShape](), len(ideals) - 1, len(came)
    while j:
        before, degree = came[n - 1][j]
        if degree:
            stages.append(_shape(ideals[before], ideals[j], degree))
        j, n = before, n - max(1, degree)
    return tuple(reversed(stages))


def _shape(low: int, high: int, degree: int) -> StageShape:
    return StageShape(layers=high & ~low, before=low, first=not low, degree=degree)
