"""GPipe: all forwards, then all backwards (Huang et al. 2019).

Two stages, three microbatches:

    stage 0 | 0F0 0F1 0F2         0B0 0B1 0B2
    stage 1 |     1F0 1F1 1F2 1B0 1B1 1B2
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedules._checks import enough_for_replicas, placed, refuse_actions, refuse_options
from planner.schedules.base import SCHEDULES, Order, PipelineShape, Worker, one_worker_per_replica, passes
from planner.schedules.placement import Placement


@SCHEDULES.register
class GPipe:
    """Every worker runs all its forwards, then all its backwards; activations of all microbatches are held."""

    name = "gpipe"
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
            ahead = [f] * len(microbatches)
            return ahead if shape.forward_only else ahead + [b] * len(microbatches)

        return one_worker_per_replica(shape, order)

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """All microbatches that the worker runs."""
        return 1 if shape.forward_only else len(shape.microbatches(stage, 0))
