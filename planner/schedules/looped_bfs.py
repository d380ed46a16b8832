"""Looped BFS: all microbatches of a rank's first stage, then of its second (Lamy-Poirier 2022, arXiv 2211.05953).

Stage s is on rank s mod P; backwards run from the last stage and the last microbatch on, as in PyTorch. Fewer but
larger phases of communication than interleaved 1F1B, and all activations are held. Two ranks of two stages, two
microbatches:

    rank 0 | 0F0 0F1 2F0 2F1         2B1 2B0 0B1 0B0
    rank 1 |     1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
"""

from __future__ import annotations

from planner.schedules._checks import check_plain
from planner.schedules.base import SCHEDULES, Order, Pass, PipelineShape, Worker, one_worker_per_rank
from planner.schedules.placement import Placement
from planner.timeline import ActionKind


@SCHEDULES.register
class LoopedBFS:
    """Stage by stage, all microbatches at a time, forward and then backward. With one stage per rank it is GPipe."""

    name = "looped_bfs"
    placement = Placement.LOOP
    splits_backward = False

    def check(self, shape: PipelineShape) -> None:
        """Any number of microbatches is legal."""
        check_plain(self.name, shape, self.placement)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per rank."""
        return one_worker_per_rank(shape, lambda rank: _order(shape, rank))

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """All microbatches."""
        return 1 if shape.forward_only else shape.num_microbatches


def _order(shape: PipelineShape, rank: int) -> Order:
    own, all_of = shape.stages_on(rank), range(shape.num_microbatches)
    ahead = [f for f in (Pass(stage, ActionKind.FORWARD, all_of) for stage in own) for _ in all_of]
    back = [b for b in (Pass(stage, ActionKind.BACKWARD, all_of[::-1]) for stage in own[::-1]) for _ in all_of]
    return ahead + back
