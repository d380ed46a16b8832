"""1F1B, also called PipeDream-Flush or early backward (Narayanan et al. 2019, Fan et al. 2021).

Two stages, three microbatches:

    stage 0 | 0F0 0F1     0B0 0F2 0B1     0B2
    stage 1 |     1F0 1B0 1F1 1B1 1F2 1B2
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.schedules._checks import enough_for_replicas, refuse_options
from planner.schedules.base import (
    SCHEDULES,
    PipelineShape,
    Worker,
    backwards,
    forwards,
    one_worker_per_replica,
)
from planner.timeline import Action


@SCHEDULES.register
class OneFOneB:
    """Warm-up forwards, then one backward after each forward, then the remaining backwards.

    A worker holds at most `min(M, S - s)` microbatches; with replicas that are dealt microbatches, at most
    `ceil(sum of replicas from here on / own replicas)` of its own (PipeDream's NOAM, per stage).
    """

    name = "1f1b"

    def check(self, shape: PipelineShape, options: dict[str, int]) -> None:
        """Any number of stages and microbatches is legal."""
        refuse_options(self.name, options)
        enough_for_replicas(self.name, shape)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per stage (per replica where microbatches are dealt)."""

        def order(stage: int, microbatches: Sequence[int]) -> list[Action]:
            if shape.forward_only:
                return forwards(stage, microbatches)
            return _one_f_one_b(stage, microbatches, _held(shape, stage))

        return one_worker_per_replica(shape, order)

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """The warm-up depth, bounded by the worker's own number of microbatches."""
        if shape.forward_only:
            return 1
        return min(len(shape.microbatches(stage, 0)), _held(shape, stage))


def _held(shape: PipelineShape, stage: int) -> int:
    return math.ceil(sum(shape.dealt[stage:]) / shape.dealt[stage])


def _one_f_one_b(stage: int, microbatches: Sequence[int], held: int) -> list[Action]:
    ahead, back = forwards(stage, microbatches), backwards(stage, microbatches)
    warm_up = min(len(ahead), held - 1)
    order = ahead[:warm_up]
    for forward, backward in zip(ahead[warm_up:], back, strict=False):
        order += (forward, backward)
    return order + back[len(ahead) - warm_up :]
