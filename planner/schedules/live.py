"""What a worker holds at once. Its order is fixed, so that no seconds are needed: a running sum over the order.

A forward pass takes what its microbatch keeps, a whole backward pass (B) gives it back. With a split backward the
input gradient (I) gives nothing back, and takes gradients that W needs and what it computed again with recomputation;
the weight gradient (W) gives all of it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from planner.schedules.base import Order, Pass, PipelineShape, Schedule
from planner.timeline import ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes that one microbatch of a stage keeps from its forward pass on, and what I adds to them until W."""

    from_forward: int
    from_input_gradient: int = 0

    def change(self, kind: ActionKind) -> int:
        """What an action takes (at its start) or, below zero, gives back (at its end)."""
        match kind:
            case ActionKind.FORWARD:
                return self.from_forward
            case ActionKind.BACKWARD:
                return -self.from_forward
            case ActionKind.INPUT_GRADIENT:
                return self.from_input_gradient
            case ActionKind.WEIGHT_GRADIENT:
                return -self.from_forward - self.from_input_gradient


NOTHING = Kept(from_forward=0)
ONE = Kept(from_forward=1)


def peak_live(order: Order, kept: Mapping[int, Kept]) -> int:
    """The most bytes that a worker with this order holds at once; `kept` is per stage, 0 where missing. O(order)."""
    change: dict[Pass, int] = {p: kept.get(p.stage, NOTHING).change(p.kind) for p in set(order)}
    return max(accumulate(map(change.__getitem__, order)), default=0)


def held_per_stage(order: Order) -> dict[int, int]:
    """Per stage, of how many microbatches a worker with this order holds the activations at most. O(order)."""
    own: dict[int, Order] = {}
    for p in order:
        own.setdefault(p.stage, []).append(p)
    return {stage: peak_live(part, {stage: ONE}) for stage, part in own.items()}


def most_held(schedule: Schedule, shape: PipelineShape, stage: int) -> int:
    """`Schedule.in_flight` for schedules without a closed form. 1 in inference, which keeps nothing.

    For legal shapes; of others some number from 0 to M.
    """
    if shape.forward_only:
        return 1
    held = (held_per_stage(w.order).get(stage, 0) for w in schedule.workers(shape) if stage in w.stages)
    return min(shape.num_microbatches, max(held, default=0))
