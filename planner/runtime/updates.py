"""The optimizer step of one process: AdamW over its weights, or over float32 copies of which they are the rounding.

The copies are what is trained: checkpoints hold them, so that nothing is lost from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planner.errors import InputError
from planner.precision import MASTER, Precision

STEP = "step"
"""AdamW's name of its count of steps, which has a dtype of its own."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A trainable parameter, and what AdamW updates for it: the parameter itself, or its float32 copy."""

    parameter: nn.Parameter
    leaf: torch.Tensor

    def take_gradient(self) -> None:
        """The leaf's gradient from the parameter's; none where the loss does not depend on it."""
        gradient = self.parameter.grad
        if self.leaf is not self.parameter:
            self.leaf.grad = None if gradient is None else gradient.to(self.leaf.dtype)

    def give_weights(self) -> None:
        """The parameter becomes the leaf, rounded."""
        if self.leaf is not self.parameter:
            self.parameter.data.copy_(self.leaf.data)


class Updates:
    """AdamW over the trainable parameters of one process (none where all are frozen)."""

    def __init__(self, parameters: Iterable[nn.Parameter], precision: Precision | None, learning_rate: float) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._slots = {id(parameter): Slot(parameter, _leaf(parameter, precision)) for parameter in trained}
        leaves = [slot.leaf for slot in self._slots.values()]
        self._adamw = torch.optim.AdamW([{"params": leaves}], lr=learning_rate)

    def step(self) -> None:
        """Update all weights from their gradients."""
        slots = self._slots.values()
        for slot in slots:
            slot.take_gradient()
        self._adamw.step()
        for slot in slots:
            slot.give_weights()

    def zero_grad(self) -> None:
        """Let all gradients go."""
        self._adamw.zero_grad(set_to_none=True)
        for slot in self._slots.values():
            slot.parameter.grad = None

    def held(self) -> list[torch.Tensor]:
        """What stays between steps beside the weights: copies and AdamW's state."""
        copies = [slot.leaf for slot in self._slots.values() if slot.leaf is not slot.parameter]
        states = (value for state in self._adamw.state.values() for value in state.values())
        return [*copies, *(value for value in states if isinstance(value, torch.Tensor))]

    def weights(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is trained of a parameter: its copy where it has one. Other tensors as they are."""
        slot = self._slots.get(id(tensor))
        return (tensor if slot is None else slot.leaf).detach()

    def state(self, tensor: torch.Tensor) -> dict[str, Any]:
        """AdamW's state of a parameter; empty before its first step, and for other tensors."""
        slot = self._slots.get(id(tensor))
        return {} if slot is None else dict(self._adamw.state.get(slot.leaf, {}))

    def load(self, tensor: torch.Tensor, weights: torch.Tensor, state: Mapping[str, torch.Tensor] | None) -> None:
        """Go on with these weights and this state."""
        tensor.data.copy_(weights)
        slot = self._slots.get(id(tensor))
        if slot is None:
            return
        slot.leaf.data.copy_(weights)
        if state is not None:
            self._adamw.state[slot.leaf] = {key: _like(key, value, slot.leaf) for key, value in state.items()}


def set_precision(model: nn.Module, precision: Precision | None) -> None:
    """Have the gradients of `model` summed in the precision's dtype.

    Parameters that the model itself keeps in another dtype than most (float32 norms) are trained in theirs. InputError
    for a model that was built in another precision.
    """
    if precision is None:
        return
    numbers: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        numbers[parameter.dtype] = numbers.get(parameter.dtype, 0) + parameter.numel()
        if _has(parameter, precision):
            parameter.grad_dtype = getattr(torch, precision.gradients)
    most = max(numbers, key=lambda dtype: numbers[dtype], default=None)
    if most is not None and most is not getattr(torch, precision.weights):
        raise InputError(
            f"the model is built in {str(most).removeprefix('torch.')}, the plan's costs are in {precision.weights}: "
            "build the model in that dtype, or profile it as it is and plan again"
        )


def _leaf(parameter: nn.Parameter, precision: Precision | None) -> torch.Tensor:
    if precision is None or not precision.master or not _has(parameter, precision):
        return parameter
    return nn.Parameter(parameter.detach().to(getattr(torch, MASTER)))


def _has(parameter: nn.Parameter, precision: Precision) -> bool:
    return parameter.dtype is getattr(torch, precision.weights)


def _like(key: str, value: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """A copy of AdamW's state in the leaf's dtype."""
    return value.clone() if key == STEP else value.to(leaf.dtype, copy=True)
