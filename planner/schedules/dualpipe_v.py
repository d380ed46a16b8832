"""DualPipeV: forwards and backwards of different microbatches side by side, two stages per rank (DeepSeek 2025).

Placed like ZB-V. In the steady phase a rank runs the forward of one stage and the backward of the other at once, so
that the communication of one (expert all-to-all) hides behind the compute of the other. Here the two run one after
the other, forward first, in the order in which PyTorch lists them: what the overlap saves is not simulated. Backward
passes are split at the ends only. Needs M >= 2P. Two ranks, four microbatches:

    rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
    rank 1 |     1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3
"""

from __future__ import annotations

from planner.errors import InputError
from planner.schedules._checks import check_plain, sizes
from planner.schedules.base import SCHEDULES, Order, Pass, PipelineShape, Worker, alternate, one_worker_per_rank, passes
from planner.schedules.live import most_held
from planner.schedules.placement import Placement
from planner.timeline import ActionKind


@SCHEDULES.register
class DualPipeV:
    """The eight phases of DeepSeek's DualPipeV (github.com/deepseek-ai/DualPipe), as PyTorch's class has them."""

    name = "dualpipe_v"
    placement = Placement.V
    splits_backward = True

    def check(self, shape: PipelineShape) -> None:
        """Two stages per rank, and at least as many microbatches as stages."""
        check_plain(self.name, shape, self.placement)
        if shape.num_microbatches < shape.num_stages:
            raise InputError(
                f"schedule {self.name!r} with {sizes(shape)}: it needs at least as many microbatches as stages: use "
                f"{shape.num_stages} microbatches",
                pointer="/plan/num_microbatches",
            )

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per rank."""
        return one_worker_per_rank(shape, lambda rank: _order(shape, rank))

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """Counted over the order."""
        return most_held(self, shape, stage)


def _order(shape: PipelineShape, rank: int) -> Order:
    """Phases 1 to 8. Split backwards leave their weight gradients to a queue, oldest first."""
    size, count = shape.pipeline_size, shape.num_microbatches
    near, far = rank, 2 * size - 1 - rank
    before, after = rank + 1, size - 1 - rank
    f0, b0, i0 = passes(near, range(count), "FBI")
    f1, b1, i1 = passes(far, range(count), "FBI")
    ends = ([b1, b0] * before)[:before] + ([i1, i0] * before)[before:]
    w0 = Pass(near, ActionKind.WEIGHT_GRADIENT, range(count - ends.count(i0) - after, count))
    w1 = Pass(far, ActionKind.WEIGHT_GRADIENT, [*range(after), *range(count - ends.count(i1), count)])
    late = [w1 if p is i1 else w0 for p in ends[before:]] + [w0] * after
    return [
        *[f0] * (2 * after),
        *[f0, f1] * before,
        *[i1, w1, f1] * after,
        *[f0, b1, f1, b0] * (count - 2 * size + before),
        *[b1, f1, b0] * after,
        *ends,
        *alternate(late[:after], [i0] * after),
        *late[after:],
    ]
