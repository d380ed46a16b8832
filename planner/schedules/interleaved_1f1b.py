"""Interleaved 1F1B: every rank runs v virtual stages (Narayanan et al. 2021, arXiv 2104.04473).

Stage s is on rank s mod P. In rounds of P microbatches a rank runs its first stage, then its second, and so on; the
bubble is (P - 1) / (v M) of the ideal time instead of (P - 1) / M, for v times the transfers and more activations:
rank 0 holds those of L (1 + (P - 1) / (P v)) layers (Korthikanti et al. 2022). Follows Megatron: M must be a multiple
of P. Two ranks of two stages, two microbatches:

    rank 0 | 0F0 0F1 2F0 2F1     2B0     2B1 0B0 0B1
    rank 1 |     1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
"""

from __future__ import annotations

from planner.errors import InputError
from planner.schedules._checks import check_plain, nearest_multiples, sizes
from planner.schedules.base import SCHEDULES, Order, PipelineShape, Worker, alternate, one_worker_per_rank, passes
from planner.schedules.live import most_held
from planner.schedules.placement import Placement


@SCHEDULES.register
class Interleaved1F1B:
    """`(v - 1) P + 2 (P - 1 - r)` warm-up forwards on rank r, then forwards and backwards in turn."""

    name = "interleaved_1f1b"
    placement = Placement.LOOP
    splits_backward = False

    def check(self, shape: PipelineShape) -> None:
        """M a multiple of P."""
        check_plain(self.name, shape, self.placement)
        count, size = shape.num_microbatches, shape.pipeline_size
        if count % size:
            raise InputError(
                f"schedule {self.name!r} with {sizes(shape)}: the number of microbatches must be a multiple of the "
                f"pipeline size: use {nearest_multiples(count, size)} microbatches",
                pointer="/plan/num_microbatches",
            )

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per rank."""
        return one_worker_per_rank(shape, lambda rank: _order(shape, rank))

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """Counted over the order."""
        return most_held(self, shape, stage)


def _order(shape: PipelineShape, rank: int) -> Order:
    """Forwards in rounds over the rank's stages from the first on, backwards from the last on."""
    size, count = shape.pipeline_size, shape.num_microbatches
    pairs = [passes(stage, range(count)) for stage in shape.stages_on(rank)]
    rounds = count // size
    ahead = [f for f, _ in pairs for _ in range(size)] * rounds
    back = [b for _, b in reversed(pairs) for _ in range(size)] * rounds
    warm_up = min(len(ahead), (len(pairs) - 1) * size + 2 * (size - 1 - rank))
    steady = len(ahead) - warm_up
    return ahead[:warm_up] + alternate(ahead[warm_up:], back[:steady]) + back[steady:]
