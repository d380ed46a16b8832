"""kFkB: 1F1B over groups of k microbatches (Wang et al. 2023, "Ada-Grouper", arXiv 2303.01675).

The option `k` (1 if it is not given) lies between 1F1B (k = 1) and GPipe (k = M): more activations are held, and a
transfer has the time of k passes to arrive. Two stages, four microbatches, k = 2:

    stage 0 | 0F0 0F1 0F2 0F3 0B0 0B1         0B2 0B3
    stage 1 |     1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import InputError
from planner.schedules._checks import nearest_multiples, placed, refuse_actions, refuse_dealt, sizes
from planner.schedules.base import SCHEDULES, Order, PipelineShape, Worker, one_worker_per_replica, passes
from planner.schedules.placement import Placement


@SCHEDULES.register
class KFKB:
    """Warm-up, then k forwards and k backwards in turn. A worker holds at most `min(M, k (S - s))` microbatches."""

    name = "kfkb"
    placement = Placement.LINE
    splits_backward = False

    def check(self, shape: PipelineShape) -> None:
        """k from 1 to M, and M a multiple of k."""
        refuse_actions(self.name, shape)
        placed(self.name, shape, self.placement)
        refuse_dealt(self.name, shape)
        strange = ", ".join(sorted(set(shape.options) - {"k"}))
        if strange:
            raise InputError(f"schedule {self.name!r} takes the option k only, got {strange}: remove it")
        k, count = _k(shape), shape.num_microbatches
        if not 1 <= k <= count:
            raise InputError(
                f"schedule {self.name!r} with {sizes(shape)}: the option k is {k}, use 1 to {count}",
                pointer="/plan/schedule_options/k",
            )
        if count % k:
            raise InputError(
                f"schedule {self.name!r} with {sizes(shape)}: the number of microbatches must be a multiple of "
                f"k = {k}: use {nearest_multiples(count, k)} microbatches",
                pointer="/plan/num_microbatches",
            )

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per stage."""

        def order(stage: int, microbatches: Sequence[int]) -> Order:
            f, b = passes(stage, microbatches)
            k, groups = _k(shape), len(microbatches) // _k(shape)
            if shape.forward_only:
                return [f] * len(microbatches)
            warm_up = min(groups, shape.num_stages - 1 - stage)
            steady = ([f] * k + [b] * k) * (groups - warm_up)
            return [f] * (k * warm_up) + steady + [b] * (k * warm_up)

        return one_worker_per_replica(shape, order)

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """k times what 1F1B holds, at most M."""
        if shape.forward_only:
            return 1
        return min(shape.num_microbatches, _k(shape) * (shape.num_stages - stage))


def _k(shape: PipelineShape) -> int:
    return shape.options.get("k", 1)
