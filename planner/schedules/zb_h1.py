"""ZB-H1: 1F1B with a split backward, in the memory of 1F1B (Qi et al. 2024, "Zero Bubble", arXiv 2401.10241).

The backward pass is split into the input gradient I, for which the stage before waits, and the weight gradient W, for
which nobody waits. Rank r runs its first r weight gradients late, in what was the bubble at the end. With equal stages
the bubble is (S - 1) (F + I - W), a third of 1F1B's where the three are equal, and no stage holds more than the first
one does under 1F1B. The same order as PyTorch's InterleavedZeroBubble with one stage per rank. Two stages, three
microbatches:

    stage 0 | 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0I2 0W2
    stage 1 |     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedules._checks import check_plain
from planner.schedules._late_weights import late_weights
from planner.schedules.base import SCHEDULES, Order, PipelineShape, Worker, one_worker_per_replica
from planner.schedules.placement import Placement


@SCHEDULES.register
class ZBH1:
    """1F1B's warm-up; from the s-th backward on, stage s runs the oldest weight gradient after each input gradient."""

    name = "zb_h1"
    placement = Placement.LINE
    splits_backward = True

    def check(self, shape: PipelineShape) -> None:
        """Any number of stages and microbatches is legal."""
        check_plain(self.name, shape, self.placement)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per stage."""

        def order(stage: int, microbatches: Sequence[int]) -> Order:
            return late_weights(shape, stage, microbatches, warm_up=shape.num_stages - stage, late=stage)

        return one_worker_per_replica(shape, order)

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """What 1F1B's first stage holds: later stages hold their late weight gradients' inputs besides."""
        return 1 if shape.forward_only else min(shape.num_microbatches, shape.num_stages)
