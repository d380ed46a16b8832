"""Notes what a rank does and when: wall time on the clock all ranks share, CPU time of the thread that computes.

On the CPU autograd runs in the calling thread, so thread CPU time is complete; it is worth nothing on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage

from planner.runtime.program import LossFunction
from planner.runtime.spec import StepRecord
from planner.timeline import Action, ActionKind, Span

COMPUTE, TRANSFER, ALL_REDUCE, OPTIMIZER = "compute", "transfer", "all_reduce", "optimizer"
LOSS = "loss"
RELEASES = (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)
"""The actions after which a microbatch is held no more."""
BACKWARD_KINDS = tuple(kind for kind in ActionKind if kind is not ActionKind.FORWARD)


@dataclass(slots=True)
class Recorder:
    """The actions of the step that is running. `cpu_s` sums thread CPU seconds per kind of work: `2F` of stage 2."""

    spans: list[Span] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the last step."""
        self.spans, self.cpu_s = [], {}

    @contextmanager
    def note(self, label: str, category: str, kind: str) -> Iterator[None]:
        """Record what runs inside as one span, its CPU seconds under `kind`."""
        start_s, start_cpu_s = time.monotonic(), time.thread_time()
        yield
        self.cpu_s[kind] = self.cpu_s.get(kind, 0.0) + time.thread_time() - start_cpu_s
        self.spans.append(Span(label=label, category=category, start_s=start_s, end_s=time.monotonic()))

    def action(self, stage: int, kind: ActionKind, microbatch: int) -> Any:
        """`note` for a forward or backward pass."""
        return self.note(str(Action(stage, kind, microbatch)), COMPUTE, f"{stage}{kind.value}")

    def losing(self, stage: int) -> Any:
        """`note` for the loss."""
        return self.note(f"{stage}{LOSS}", COMPUTE, f"{stage}{LOSS}")

    def receiving(self, action: Action) -> Any:
        """`note` for waiting for what an action needs."""
        return self.note(f"receive for {action}", TRANSFER, TRANSFER)

    def timed_loss(self, loss: LossFunction, stage: int) -> LossFunction:
        """`loss` with its own CPU seconds."""

        def timed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            with self.losing(stage):
                return loss(output, target)

        return timed

    def wall_s(self, category: str) -> float:
        """Wall seconds of all spans of a category."""
        return sum(span.end_s - span.start_s for span in self.spans if span.category == category)

    def peak_in_flight(self) -> int:
        """The most microbatches between their forward and their backward pass at any time."""
        held = highest = 0
        for span in self.spans:
            if span.category == COMPUTE:
                ends = any(kind.value in span.label for kind in RELEASES)
                held += (ActionKind.FORWARD.value in span.label) - ends
                highest = max(highest, held)
        return highest

    def forward_s(self, stage: int) -> float:
        """Thread CPU seconds of a stage's forward passes, and of the loss where it makes that."""
        return sum(self.cpu_s.get(f"{stage}{kind}", 0.0) for kind in (ActionKind.FORWARD.value, LOSS))

    def backward_s(self, stage: int) -> float:
        """Thread CPU seconds of all of a stage's other passes."""
        return sum(self.cpu_s.get(f"{stage}{kind.value}", 0.0) for kind in BACKWARD_KINDS)


class RecordedStage(PipelineStage):
    """A `PipelineStage` that notes its passes. `recorder` is set right after construction."""

    recorder: Recorder

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of one microbatch."""
        with self.recorder.action(self.stage_index, ActionKind.FORWARD, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The backward pass of one microbatch."""
        with self.recorder.action(self.stage_index, ActionKind.BACKWARD, bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


def record_step(
    recorder: Recorder,
    stages: Sequence[int],
    work: Callable[[], float | None],
    delay_s: Callable[[], float | None],
) -> StepRecord:
    """Run one step of these stages and say what it took; `work` returns the mean loss where there is one."""
    recorder.clear()
    waited_s, start_s, start_cpu_s, start_process_s = (
        delay_s(),
        time.monotonic(),
        time.thread_time(),
        time.process_time(),
    )
    loss = work()
    busy_s, process_s = time.thread_time() - start_cpu_s, time.process_time() - start_process_s
    end_s, now_waited_s = time.monotonic(), delay_s()
    return StepRecord(
        start_s=start_s,
        end_s=end_s,
        forward_s={stage: recorder.forward_s(stage) for stage in stages},
        backward_s={stage: recorder.backward_s(stage) for stage in stages},
        all_reduce_s=recorder.wall_s(ALL_REDUCE),
        optimizer_s=recorder.cpu_s.get(OPTIMIZER, 0.0),
        busy_s=busy_s,
        process_s=process_s,
        passes_s={kind: seconds for kind, seconds in recorder.cpu_s.items() if kind[0].isdigit()},
        run_queue_s=None if waited_s is None or now_waited_s is None else now_waited_s - waited_s,
        loss=loss,
        peak_in_flight=recorder.peak_in_flight(),
        spans=tuple(recorder.spans),
    )
