"""Which tensors cross each boundary, and the module that torch runs as a stage.

Torch sends tensors from a stage to the next one only. A tensor that skips over stages is received and passed on by
each stage in between, its gradient on the way back likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from planner.errors import InputError, RunError
from planner.plan import Stage
from planner.runtime.layered import Compute, computations
from planner.runtime.program import TracedProgram
from planner.runtime.split import StageModule, output_name, split_layers


def boundaries(parts: Sequence[StageModule]) -> list[tuple[str, ...]]:
    """`[s]` names the tensors sent from stage s to stage s + 1, in the order in which they are made."""
    crossing = []
    for cut in range(1, len(parts)):
        made = (name for part in parts[:cut] for name in part.output_names)
        read = {name for part in parts[cut:] for name in part.input_names if name not in part.model_inputs}
        crossing.append(tuple(name for name in made if name in read))
    return crossing


def check_order(parts: Sequence[StageModule]) -> None:
    """InputError naming the stage that reads what a later one makes (so the last one makes the model's output)."""
    maker = {name: number for number, part in enumerate(parts) for name in part.output_names}
    for number, part in enumerate(parts):
        for name in part.input_names:
            if maker.get(name, 0) > number:
                raise InputError(
                    f"stage {number} reads tensor {name!r} of stage {maker[name]}: order the stages so that every "
                    "tensor is made before it is read",
                    pointer=f"/stages/{number}/layers",
                )


def check_boundaries(program: TracedProgram, crossing: Sequence[tuple[str, ...]]) -> None:
    """RunError naming the stage when a tensor that is no floating-point tensor would be sent."""
    values = {node.name: node.meta.get("val") for node in program.module.graph.nodes}
    for stage, names in enumerate(crossing):
        for name in names:
            value = values[name]
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
                raise RunError(
                    f"stage {stage} would send tensor {name!r} ({kind}) to stage {stage + 1}: only floating-point "
                    "tensors are sent; put the layers that make and read it into one stage"
                )


class DenseGradient(torch.autograd.Function):
    """The tensor as it is; its gradient contiguous, as `torch.distributed` sends contiguous tensors only.

    Gradients of transposed and of expanded (summed) tensors are strided views.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """A view of `tensor`."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """A contiguous copy, where the gradient is none."""
        return gradient.contiguous()


def dense_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """`DenseGradient` of a tensor."""
    dense: torch.Tensor = DenseGradient.apply(tensor)  # type: ignore[no-untyped-call]
    return dense


class RelayStage(nn.Module):
    """One stage as torch runs it: `received` tensors in, `sent` tensors out (the model's output on the last stage).

    `received` come from the previous stage as positional arguments, inputs of the model that the stage reads (ids,
    images) as keyword arguments: every rank makes its own batch, so that data never travels. `compute` does the work
    of `part`, whose names and parameters are those of the model.
    """

    def __init__(self, part: StageModule, compute: Compute, received: Sequence[str], sent: Sequence[str]) -> None:
        super().__init__()
        self.part = part
        self.compute = compute
        self.received = tuple(received)
        self.sent = tuple(sent)

    def forward(self, *received: torch.Tensor, **data: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The tensors of `sent`, contiguous; a single one as it is, not in a tuple."""
        known = dict(zip(self.received, map(dense_gradient, received), strict=True)) | data
        made = self.compute(*(known[name] for name in self.part.input_names))
        known.update(zip(self.part.output_names, made, strict=True))
        sent = tuple(known[name].contiguous() for name in self.sent)
        return sent[0] if len(sent) == 1 else sent


def relay_stages(program: TracedProgram, stages: Sequence[Stage]) -> list[RelayStage]:
    """All stages of the pipeline, tied together by `boundaries`."""
    parts = split_layers(program, [stage.layers for stage in stages])
    check_order(parts)
    crossing = boundaries(parts)
    check_boundaries(program, crossing)
    ends = [(), *crossing, (output_name(program),)]
    work = computations(program, stages, parts)
    return [RelayStage(part, work[i], ends[i], ends[i + 1]) for i, part in enumerate(parts)]
