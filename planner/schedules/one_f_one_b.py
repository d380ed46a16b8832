"""1F1B, also called PipeDream-Flush or early backward (Narayanan et al. 2019, Fan et al. 2021).

Two stages, three microbatches:

    stage 0 | 0F0 0F1     0B0 0F2 0B1     0B2
    stage 1 |     1F0 1B0 1F1 1B1 1F2 1B2
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.schedules._checks import enough_for_replicas, placed, refuse_actions, refuse_options
from planner.schedules.base import SCHEDULES, Order, PipelineShape, Worker, one_worker_per_replica, passes
from planner.schedules.placement import Placement


@SCHEDULES.register
class OneFOneB:
    """Warm-up forwards, then one backward after each forward, then the remaining backwards.

    A worker holds at most `min(M, S - s)` microbatches; with replicas that are dealt microbatches, at most
    `ceil(sum of replicas from here on / own replicas)` of its own (PipeDream's NOAM, per stage).
    """

    name = "1f1b"
    placement = Placement.LINE
    splits_backward = False

    def check(self, shape: PipelineShape) -> None:
        """Any number of stages and microbatches is legal."""
        refuse_options(self.name, shape)
        refuse_actions(self.name, shape)
        placed(self.name, shape, self.placement)
        enough_for_replicas(self.name, shape)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per stage (per replica where microbatches are dealt)."""

        def order(stage: int, microbatches: Sequence[int]) -> Order:
            f, b = passes(stage, microbatches)
            count = len(microbatches)
            if shape.forward_only:
                return [f] * count
            warm_up = min(count, _held(shape, stage) - 1)
            return [f] * warm_up + [f, b] * (count - warm_up) + [b] * warm_up

        return one_worker_per_replica(shape, order)

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """The warm-up depth, bounded by the worker's own number of microbatches."""
        if shape.forward_only:
            return 1
        return min(len(shape.microbatches(stage, 0)), _held(shape, stage))


def _held(shape: PipelineShape, stage: int) -> int:
    return math.ceil(sum(shape.dealt[stage:]) / shape.dealt[stage])
