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
from planner.runtime.shards import Shard, Shards

STEP = "step"
"""AdamW's name of its count of steps, which has a dtype of its own."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A trainable parameter, and what AdamW updates for it: the parameter itself, or its float32 copy.

    With a shard it is the process's own part of either.
    """

    parameter: nn.Parameter
    leaf: torch.Tensor
    shard: Shard | None

    def take_gradient(self) -> None:
        """The leaf's gradient from the parameter's; none where the loss does not depend on it."""
        gradient = self.parameter.grad if self.shard is None else self.shard.gradient
        if self.leaf is not self.parameter:
            self.leaf.grad = None if gradient is None else gradient.to(self.leaf.dtype)

    def give_weights(self) -> None:
        """The parameter becomes the leaf, rounded. Collective where the weights are whole and their state is not."""
        shard = self.shard
        if shard is None:
            if self.leaf is not self.parameter:
                self.parameter.data.copy_(self.leaf.data)
        elif shard.piece is not None:
            shard.piece.copy_(self.leaf.data)
        else:
            shard.whole(self.leaf.data.to(self.parameter.dtype), self.parameter.data)

    def whole(self, own: torch.Tensor) -> torch.Tensor:
        """Of a tensor like the leaf, that of the whole parameter. Collective with a shard."""
        return own if self.shard is None else self.shard.whole(own)

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """The leaf's part of a tensor like the parameter."""
        return whole if self.shard is None else self.shard.own(whole)


class Updates:
    """AdamW over the trainable parameters of one process (none where all are frozen)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        precision: Precision | None,
        learning_rate: float,
        shards: Shards | None = None,
    ) -> None:
        self._shards = shards or Shards()
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._slots = {id(parameter): _slot(parameter, precision, self._shards.of(parameter)) for parameter in trained}
        leaves = [slot.leaf for slot in self._slots.values()]
        self._adamw = torch.optim.AdamW([{"params": leaves}], lr=learning_rate)

    def settle(self) -> None:
        """Sum and divide the gradients that are left to sum and divide. Collective among replicas that divide."""
        for slot in self._slots.values():
            if slot.shard is not None:
                slot.shard.settle()

    def step(self) -> None:
        """Update all weights from their gradients. Collective among replicas that divide."""
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
            if slot.shard is not None:
                slot.shard.gradient = None

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The summed gradient of a parameter, whole. Collective where it is divided."""
        slot = self._slots[id(parameter)]
        if slot.shard is None or slot.shard.gradient is None:
            return parameter.grad
        return slot.shard.whole(slot.shard.gradient)

    def held(self) -> list[torch.Tensor]:
        """What stays between steps beside the weights: copies and AdamW's state."""
        copies = [slot.leaf for slot in self._slots.values() if slot.leaf is not slot.parameter]
        pieces = [shard.piece for shard in self._shards.all() if shard.piece is not None]
        states = (value for state in self._adamw.state.values() for value in state.values())
        return [*copies, *pieces, *(value for value in states if isinstance(value, torch.Tensor))]

    def weights(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is trained of a parameter, whole: its copy where it has one. Other tensors as they are."""
        slot, shard = self._slots.get(id(tensor)), self._shards.of(tensor)
        if slot is not None:
            return slot.whole(slot.leaf.detach())
        return tensor.detach() if shard is None or shard.piece is None else shard.whole(shard.piece)

    def state(self, tensor: torch.Tensor) -> dict[str, Any]:
        """AdamW's state of a parameter, whole; empty before its first step, and for other tensors."""
        slot = self._slots.get(id(tensor))
        if slot is None:
            return {}
        state = self._adamw.state.get(slot.leaf, {})
        return {key: value if key == STEP else slot.whole(value) for key, value in state.items()}

    def load(self, tensor: torch.Tensor, weights: torch.Tensor, state: Mapping[str, torch.Tensor] | None) -> None:
        """Go on with these weights and this state."""
        tensor.data.copy_(weights)
        slot, shard = self._slots.get(id(tensor)), self._shards.of(tensor)
        if shard is not None and shard.piece is not None:
            shard.piece.copy_(shard.own(weights))
        if slot is None:
            return
        slot.leaf.data.copy_(slot.own(weights))
        if state is not None:
            self._adamw.state[slot.leaf] = {key: _loaded(key, value, slot) for key, value in state.items()}


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


def _slot(parameter: nn.Parameter, precision: Precision | None, shard: Shard | None) -> Slot:
    own: torch.Tensor = parameter
    if shard is not None:
        own = nn.Parameter(shard.own(parameter.data) if shard.piece is None else shard.piece)
    if precision is not None and precision.master and _has(parameter, precision):
        own = nn.Parameter(own.detach().to(getattr(torch, MASTER)))
    return Slot(parameter, own, shard)


def _has(parameter: nn.Parameter, precision: Precision) -> bool:
    return parameter.dtype is getattr(torch, precision.weights)


def _loaded(key: str, value: torch.Tensor, slot: Slot) -> torch.Tensor:
    """A copy of AdamW's state in the leaf's dtype."""
    return value.clone() if key == STEP else slot.own(value).to(slot.leaf.dtype, copy=True)
