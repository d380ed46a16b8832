"""What the stages of a plan hold at once: by the schedule's closed form, or counted over its orders.

Where every stage has devices of its own and gives back in one action what its forward took, the most is the most
microbatches in flight times what one keeps. Else the worker's order is walked: several stages on one device do not have
their peaks at the same time, and what I adds is held until W.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedules import Kept, PipelineShape, Placement, Schedule, Worker, held_per_stage, peak_live
from planner.timeline import MemoryParts


class Holding:
    """Of one schedule and shape; orders are made once, when they are needed. O(actions) then, else O(1)."""

    def __init__(self, schedule: Schedule, shape: PipelineShape) -> None:
        self._schedule, self._shape = schedule, shape
        self._workers: tuple[Worker, ...] | None = None
        self._held: dict[int, int] = {}

    def in_flight(self, stage: int) -> int:
        """The most microbatches of one worker of `stage` that are in flight at once."""
        if self._schedule.placement is Placement.LINE or self._shape.forward_only:
            return self._schedule.in_flight(self._shape, stage)
        if not self._held:
            self._held = {s: most for w in self._orders() for s, most in held_per_stage(w.order).items()}
        return self._held[stage]

    def peak_bytes(self, kept: Sequence[Kept]) -> list[int]:
        """Per stage, the most that the device which runs it holds at once, of all its stages together."""
        late = self._schedule.splits_backward and any(k.from_input_gradient for k in kept)
        if self._schedule.placement is Placement.LINE and not late:
            return [self.in_flight(stage) * k.from_forward for stage, k in enumerate(kept)]
        of = dict(enumerate(kept))
        peaks = {stage: peak for w in self._orders() for peak in [peak_live(w.order, of)] for stage in w.stages}
        return [peaks[stage] for stage in range(len(kept))]

    def _orders(self) -> tuple[Worker, ...]:
        """InputError for a shape that the schedule does not have: there is nothing to count then."""
        if self._workers is None:
            self._schedule.check(self._shape)
            self._workers = self._schedule.workers(self._shape)
        return self._workers


def on_one_device(alone: Sequence[MemoryParts], kept_bytes: int, transient_bytes: Sequence[int]) -> MemoryParts:
    """Memory of a device that runs several stages: one pass at a time, so that they share workspace and transients.

    `alone` are the stages' own parts, `kept_bytes` what they keep together at most, `transient_bytes` what
    recomputation needs besides.
    """
    parts = {
        "weights_bytes": sum(m.weights_bytes for m in alone),
        "gradients_bytes": sum(m.gradients_bytes for m in alone),
        "optimizer_bytes": sum(m.optimizer_bytes for m in alone),
        "activations_bytes": kept_bytes + max(transient_bytes),
        "workspace_bytes": max(m.workspace_bytes for m in alone),
        "buffers_bytes": sum(m.buffers_bytes for m in alone),
    }
    return MemoryParts(**parts, total_bytes=sum(parts.values()), limit_bytes=min(m.limit_bytes for m in alone))
