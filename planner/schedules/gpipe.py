"""GPipe: all forwards, then all backwards (Huang et al. 2019).

Two stages, three microbatches:

    stage 0 | 0F0 0F1 0F2         0B0 0B1 0B2
    stage 1 |     1F0 1F1 1F2 1B0 1B1 1B2
"""

from __future__ import annotations

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
class GPipe:
    """Every worker runs all its forwards, then all its backwards; activations of all microbatches are held."""

    name = "gpipe"

    def check(self, shape: PipelineShape, options: dict[str, int]) -> None:
        """Any number of stages and microbatches is legal."""
        refuse_options(self.name, options)
        enough_for_replicas(self.name, shape)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per stage (per replica where microbatches are dealt)."""

        def order(stage: int, microbatches: Sequence[int]) -> list[Action]:
            ahead = forwards(stage, microbatches)
            return ahead if shape.forward_only else ahead + backwards(stage, microbatches)

        return one_worker_per_replica(shape, order)

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """All microbatches that the worker runs."""
        return 1 if shape.forward_only else len(shape.microbatches(stage, 0))
