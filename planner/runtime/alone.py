"""The process that acts as one rank of a plan, with nobody at the other ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from planner.errors import RunError
from planner.runtime.job import Seat
from planner.runtime.mailbox import Mailbox, Parcel
from planner.runtime.memory import peak_of, resident_bytes
from planner.runtime.program import TracedProgram
from planner.runtime.recorder import Recorder
from planner.runtime.replay import ReplaySpec
from planner.runtime.routes import Way
from planner.runtime.spec import StepRecord

if TYPE_CHECKING:
    from planner.runtime.training import Trainer

SMALL = 1e-3
"""Received numbers are drawn with this deviation: no infinities, no zeros that arithmetic could skip."""


@dataclass(slots=True)
class Arrived:
    """Stands for a transfer that is over; keeps the tensor as long as a transfer would."""

    tensor: torch.Tensor

    def wait(self) -> None:
        """Nothing to wait for."""


@dataclass(slots=True)
class LonelyMailbox(Mailbox):
    """Makes up what is expected from other ranks, and sends nothing."""

    device: str = "cpu"

    def post(self, ways: Iterable[Way], stage: int, microbatch: int, *, backward: bool) -> None:
        """Have a tensor of made-up numbers at once."""
        for way in ways:
            key = (way.number, microbatch, backward)
            if key not in self._parcels and not self._is_home(way):
                self._parcels[key] = Parcel(made_up(self.examples[way.name], self.device), [])

    def put(self, way: Way, stage: int, microbatch: int, tensor: torch.Tensor, *, backward: bool) -> None:
        """Hand over inside the process, else hold what would be sent."""
        if self._is_home(way):
            self._parcels[way.number, microbatch, backward] = Parcel(tensor, [])
        else:
            self._sent[way.number, microbatch, backward] = cast("Any", [Arrived(tensor.contiguous())])


def made_up(example: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor of the example's shape and type: small numbers, zeros where it holds integers."""
    if not example.is_floating_point():
        return torch.zeros(example.shape, dtype=example.dtype, device=device)
    return torch.empty(example.shape, dtype=example.dtype, device=device).normal_(std=SMALL)


@dataclass(slots=True)
class StreamRecorder(Recorder):
    """A recorder for a GPU: seconds between events on its stream, read when the step is over."""

    _events: list[tuple[str, Any, Any]] = field(default_factory=list)

    @contextmanager
    def note(self, label: str, category: str, kind: str) -> Iterator[None]:
        """Record what runs inside. Its span on the wall clock is that of the launches."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        with Recorder.note(self, label, category, kind):
            yield
        end.record()
        self._events.append((kind, start, end))

    def settle(self) -> dict[str, float]:
        """Seconds by kind of all events since the last call."""
        torch.cuda.synchronize()
        found: dict[str, float] = {}
        for kind, start, end in self._events:
            found[kind] = found.get(kind, 0.0) + start.elapsed_time(end) / 1e3
        self._events.clear()
        return found


def placed(program: TracedProgram, device: str) -> TracedProgram:
    """The program with weights, buffers and the tensors that it makes itself on a device."""
    program.runnable.model.to(device)
    program.module.to(device)
    for node in program.module.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = dict(node.kwargs) | {"device": torch.device(device)}
    program.module.recompile()
    if device == "cpu":
        return program
    make_batch = program.runnable.make_batch

    def make(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        inputs, target = make_batch(batch_size, seed)
        return tuple(tensor.to(device) for tensor in inputs), target.to(device)

    return replace(program, runnable=replace(program.runnable, make_batch=make))


def run_alone(spec: ReplaySpec, seat: Seat) -> tuple[tuple[StepRecord, ...], int]:
    """All steps, then the peak of one more."""
    from planner.runtime.training import build

    on_gpu = spec.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        raise RunError("this machine has no CUDA device that torch can use: replay on cpu")
    recorder = StreamRecorder() if on_gpu else Recorder()
    trainer = build(
        spec.run,
        replace(seat, rank=spec.rank),
        lambda batch_size: placed(spec.loader(batch_size), spec.device),
        recorder=recorder,
        alone_on=spec.device,
    )
    steps = []
    for number in range(spec.run.num_steps):
        step = trainer.step(number)
        steps.append(_settled(step, recorder) if isinstance(recorder, StreamRecorder) else step)
    return tuple(steps), _peak(lambda: trainer.step(spec.run.num_steps), trainer, on_gpu)


def _settled(step: StepRecord, recorder: StreamRecorder) -> StepRecord:
    """The step with the GPU's seconds instead of the thread's."""
    seconds = recorder.settle()
    passes = {kind: seconds[kind] for kind in step.passes_s}
    return replace(step, passes_s=passes, optimizer_s=seconds.get("optimizer", 0.0))


def _peak(work: Any, trainer: Trainer, on_gpu: bool) -> int:
    if not on_gpu:
        return peak_of(work) + resident_bytes(trainer.module, trainer.optimizer.held())
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())
