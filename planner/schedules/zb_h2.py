"""ZB-H2: no bubble but at the ends, for up to twice the activations (Qi et al. 2024, arXiv 2401.10241).

More forwards before the first backward fill what was the bubble at the start, late weight gradients the one at the end.
With equal stages, F = I = W and M >= 2 S - 1 no stage is idle between its first and its last action: the stages' work
is a parallelogram, M (F + I + W) + (S - 1) F long, of which the paper skips the flush. Every stage holds up to 2 S - 1
microbatches. Two stages, three microbatches:

    stage 0 | 0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2
    stage 1 |     1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedules._checks import check_plain
from planner.schedules._late_weights import late_weights
from planner.schedules.base import SCHEDULES, Order, PipelineShape, Worker, one_worker_per_replica
from planner.schedules.placement import Placement


@SCHEDULES.register
class ZBH2:
    """`2 (S - s) - 1` warm-up forwards on stage s, then I, W and F in turn, the weight gradients 2 s turns late."""

    name = "zb_h2"
    placement = Placement.LINE
    splits_backward = True

    def check(self, shape: PipelineShape) -> None:
        """Any number of stages and microbatches is legal."""
        check_plain(self.name, shape, self.placement)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per stage."""

        def order(stage: int, microbatches: Sequence[int]) -> Order:
            return late_weights(shape, stage, microbatches, warm_up=2 * (shape.num_stages - stage) - 1, late=2 * stage)

        return one_worker_per_replica(shape, order)

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """The warm-up and, later in the pipeline, the inputs of late weight gradients."""
        return 1 if shape.forward_only else min(shape.num_microbatches, 2 * shape.num_stages - 1)
