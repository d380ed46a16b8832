"""ZB-V: zero bubble in the memory of 1F1B, two stages per rank (Qi et al. 2024, arXiv 2401.10241, section 6).

Stage s is on rank s, and on the way back stage 2P - 1 - s is: the last stage lies on rank 0, whose first backward comes
early. With equal stages, F = I = W and M >= 2P no rank idles between its first and its last action, and each holds P
microbatches of both stages at most. Two ranks, three microbatches:

    rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
    rank 1 |     1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
"""

from __future__ import annotations

from itertools import count

from planner.schedules._checks import check_plain
from planner.schedules.base import SCHEDULES, Order, Pass, PipelineShape, Worker, one_worker_per_rank, passes
from planner.schedules.live import most_held
from planner.schedules.placement import Placement


@SCHEDULES.register
class ZBV:
    """The order of the paper's figure for any number of microbatches: PyTorch's ZBVZeroBubble."""

    name = "zb_v"
    placement = Placement.V
    splits_backward = True

    def check(self, shape: PipelineShape) -> None:
        """Any number of microbatches is legal; two stages per rank."""
        check_plain(self.name, shape, self.placement)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per rank."""
        return one_worker_per_rank(shape, lambda rank: _order(shape, rank))

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """Counted over the order."""
        return most_held(self, shape, stage)


def _order(shape: PipelineShape, rank: int) -> Order:
    """The order of at least 2P - 1 microbatches, without those that the shape does not have."""
    size, all_of = shape.pipeline_size, range(shape.num_microbatches)
    f0, i0, w0 = passes(rank, all_of, "FIW")
    f1, i1, w1 = passes(2 * size - 1 - rank, all_of, "FIW")
    after = size - 1 - rank
    full = max(len(all_of), 2 * size - 1)
    warm_up = [f0] * (2 * after + 1) + [f1, f0] * rank + [f1, i1, w1] * (after + 1)
    steady = [f0, i0, w0, f1, i1, w1] * (full - size - after) + [i0, w0, f1, i1, w1] * after
    cool_down = [i0, i1] * rank + [i0, w0] * (after + 1) + [w1] * rank + [w0] * rank
    order = warm_up + steady + cool_down
    return order if full == len(all_of) else _first(len(all_of), order)


def _first(most: int, order: Order) -> Order:
    """The order with the first `most` of every pass."""
    number: dict[Pass, count[int]] = {p: count() for p in set(order)}
    return [p for p in order if next(number[p]) < most]
