"""The unpartitioned model on the same batch: what a run's loss and gradients must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from planner.runtime.data import Batch
from planner.runtime.program import RunnableModel

FILE = "reference.pt"


def write_reference(runnable: RunnableModel, batch: Batch, num_pieces: int, folder: Path) -> None:
    """Loss and gradients of the original model (no trace, no stages), over `num_pieces` equal pieces of the batch.

    The pieces are the microbatches as the replicas see them. This matters only for models with batch statistics (batch
    normalisation); for all others it is the whole batch at once, in less memory. The model is left as it was, without
    gradients. It is not copied: copies of models whose `forward` was replaced compute with the original's parameters.
    """
    model = runnable.model
    inputs, target = batch
    pieces = [tensor.chunk(num_pieces) for tensor in inputs]
    total = 0.0
    with _kept_buffers(model):
        for number, wanted in enumerate(target.chunk(num_pieces)):
            loss = runnable.loss(model(*(chunks[number] for chunks in pieces)), wanted) / num_pieces
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach().double())
    gradients = gradients_of(model)
    scale = max((float(gradient.abs().max()) for gradient in gradients.values() if gradient.numel()), default=0.0)
    torch.save({"loss": total, "scale": scale, "gradients": gradients}, folder / FILE)
    model.zero_grad(set_to_none=True)


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics are afterwards what they were before."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])


def _own_gradient(parameter: nn.Parameter) -> torch.Tensor | None:
    return parameter.grad


GradientOf = Callable[[nn.Parameter], torch.Tensor | None]


def gradients_of(module: nn.Module, gradient_of: GradientOf = _own_gradient) -> dict[str, torch.Tensor]:
    """Gradients of all trainable parameters under all their names; zero where the loss does not depend on one."""
    found = {
        name: (parameter, gradient_of(parameter))
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    return {
        name: torch.zeros(parameter.shape, dtype=parameter.dtype) if gradient is None else gradient
        for name, (parameter, gradient) in found.items()
    }


@dataclass(frozen=True, slots=True)
class Reference:
    """Of the unpartitioned model: its loss, and the largest absolute value of all its gradients."""

    loss: float
    gradient_scale: float


def compare(
    module: nn.Module, folder: Path, gradient_of: GradientOf = _own_gradient
) -> tuple[Reference, dict[str, float]]:
    """The reference, and per parameter of `module` the largest absolute difference of its gradient from it."""
    reference = torch.load(folder / FILE, weights_only=True, mmap=True)
    wanted: dict[str, torch.Tensor] = reference["gradients"]
    differences = {
        name: float((gradient - wanted[name]).abs().max()) if gradient.numel() else 0.0
        for name, gradient in gradients_of(module, gradient_of).items()
    }
    return Reference(float(reference["loss"]), float(reference["scale"])), differences
