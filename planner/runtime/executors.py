"""Executors: one training step's passes on one rank, through torch's schedules or, with one stage, a plain loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from planner.runtime.program import LossFunction
from planner.runtime.recorder import RecordedStage, Recorder
from planner.runtime.relay import RelayStage
from planner.timeline import ActionKind

TORCH_SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
"""Plan schedule -> torch's class."""
CPU = torch.device("cpu")


class Executor(Protocol):
    """Runs all forward and backward passes of a step.

    `gradients_are_means`: they are means over the process's own samples, so that replicas average them. Else they are
    its part of the mean over the global batch.
    """

    gradients_are_means: bool

    def passes(self, data: Mapping[str, torch.Tensor], target: torch.Tensor) -> float | None:
        """The mean loss over the own samples on the last stage, None on the others."""

    def received_bytes(self) -> int:
        """Bytes of the buffers that stay allocated for tensors and gradients from other ranks."""


class PipelineExecutor:
    """A stage of several, under one of torch's schedules.

    `group` holds the ranks of one replica in stage order, `number` is this rank's stage.
    """

    gradients_are_means = True

    def __init__(
        self,
        module: RelayStage,
        number: int,
        num_stages: int,
        num_microbatches: int,
        schedule: str,
        loss: LossFunction,
        group: dist.ProcessGroup | None,
        recorder: Recorder,
    ) -> None:
        self._stage = RecordedStage(module, number, num_stages, CPU, group=group)
        self._stage.recorder = recorder
        timed = recorder.timed_loss(loss, number)
        self._schedule = TORCH_SCHEDULES[schedule](self._stage, num_microbatches, loss_fn=timed)

    def passes(self, data: Mapping[str, torch.Tensor], target: torch.Tensor) -> float | None:
        """One `step` of the schedule; outputs are not returned, which would keep all of them."""
        if not self._stage.is_last:
            self._schedule.step(return_outputs=False, **data)
            return None
        losses: list[torch.Tensor] = []
        self._schedule.step(target=target, losses=losses, return_outputs=False, **data)
        return float(torch.stack([loss.detach().double() for loss in losses]).mean())

    def received_bytes(self) -> int:
        """Torch allocates them in the first step and keeps them."""
        infos = [*self._stage.args_recv_info.values(), *self._stage.grad_recv_info.values()]
        buffers = [info.buffer for entry in infos for info in entry if info.buffer is not None]
        return sum(buffer.numel() * buffer.element_size() for buffer in buffers)


class SingleStageExecutor:
    """The whole model on one rank: gradients are accumulated over the microbatches."""

    gradients_are_means = True

    def __init__(self, module: RelayStage, num_microbatches: int, loss: LossFunction, recorder: Recorder) -> None:
        self._module = module
        self._num_microbatches = num_microbatches
        self._recorder = recorder
        self._loss = recorder.timed_loss(loss, 0)

    def passes(self, data: Mapping[str, torch.Tensor], target: torch.Tensor) -> float | None:
        """Forward, loss and backward of one microbatch after the other."""
        pieces = {name: tensor.chunk(self._num_microbatches) for name, tensor in data.items()}
        losses = []
        for number, wanted in enumerate(target.chunk(self._num_microbatches)):
            with self._recorder.action(0, ActionKind.FORWARD, number):
                output = self._module(**{name: chunks[number] for name, chunks in pieces.items()})
            loss = self._loss(output, wanted)
            with self._recorder.action(0, ActionKind.BACKWARD, number):
                (loss / self._num_microbatches).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach().double())
        return float(torch.stack(losses).mean())

    def received_bytes(self) -> int:
        """Nothing is received."""
        return 0
