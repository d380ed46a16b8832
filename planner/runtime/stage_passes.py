"""One stage's passes over microbatches, and what it keeps between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from planner.runtime.layered import Compute
from planner.runtime.program import LossFunction
from planner.runtime.shards import GRADIENTS, Shard, gather
from planner.runtime.split import StageModule
from planner.runtime.split_backward import WeightWork, input_gradients

Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class Held:
    """A microbatch between its forward and its backward pass: `inputs` are leaves, `roots` what is differentiated.

    `output` is the model's, until the loss is made of it.
    """

    inputs: Tensors
    roots: Tensors
    output: torch.Tensor | None
    loss: torch.Tensor | None = None


@dataclass(slots=True)
class StagePasses:
    """A stage of our own executor.

    `received` are the inputs that other stages make; those in `with_gradient` get one. `output` names the tensor that
    the loss reads, where this stage makes it. `shards` are the divisions of its parameters.
    """

    part: StageModule
    compute: Compute
    received: frozenset[str]
    with_gradient: frozenset[str]
    output: str | None
    loss: LossFunction
    shards: Sequence[Shard] = ()
    _held: dict[int, Held] = field(default_factory=dict)
    _later: dict[int, WeightWork | Held] = field(default_factory=dict)
    _gradients: dict[int, Tensors] = field(default_factory=dict)

    def forward(self, microbatch: int, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """The outputs by name, detached. `inputs` by name: received tensors and data."""
        leaves = {name: self._leaf(name, tensor) for name, tensor in inputs.items()}
        made = self.compute(*(leaves[name] for name in self.part.input_names))
        outputs = dict(zip(self.part.output_names, made, strict=True))
        roots = {name: tensor for name, tensor in outputs.items() if tensor.requires_grad and name != self.output}
        kept = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        self._held[microbatch] = Held(kept, roots, None if self.output is None else outputs[self.output])
        return {name: tensor.detach() for name, tensor in outputs.items() if name != self.output}

    def lose(self, microbatch: int, target: torch.Tensor, weight: float) -> float | None:
        """The loss of a microbatch times `weight`, on the stage that makes the model's output; None on the others."""
        held = self._held[microbatch]
        if held.output is None:
            return None
        held.loss, held.output = self.loss(held.output, target) * weight, None
        return float(held.loss.detach().double())

    def backward(self, microbatch: int, gradients: Mapping[str, torch.Tensor]) -> Tensors:
        """Gradients of weights (added to theirs) and of the received tensors (returned), from those of the outputs."""
        held = self._held.pop(microbatch)
        roots, given = _roots(held, gradients)
        if roots:
            torch.autograd.backward(roots, given)
        self._divide()
        return self._returned(held)

    def backward_input(self, microbatch: int, gradients: Mapping[str, torch.Tensor]) -> Tensors:
        """Gradients of the received tensors alone. Without any, the whole backward pass is left to the weights."""
        held = self._held.pop(microbatch)
        if not held.inputs:
            self._later[microbatch], self._gradients[microbatch] = held, dict(gradients)
            return self._returned(held)
        roots, given = _roots(held, gradients)
        inputs, weights = list(held.inputs.values()), _trainable(self.part)
        if roots:
            self._later[microbatch] = input_gradients(roots, given, inputs, weights)
        self._divide()
        return self._returned(held)

    def backward_weight(self, microbatch: int) -> None:
        """Gradients of the weights, after `backward_input` of the same microbatch."""
        work = self._later.pop(microbatch, None)
        gather(self.shards)
        if isinstance(work, WeightWork):
            work.run()
        elif work is not None:
            roots, given = _roots(work, self._gradients.pop(microbatch))
            if roots:
                torch.autograd.backward(roots, given)
        self._divide()

    def _divide(self) -> None:
        """After a backward pass: what it has left whole of gradients and weights that are divided."""
        for shard in self.shards:
            if shard.level >= GRADIENTS and not shard.tied:
                shard.scatter()
            shard.release()

    def _leaf(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in self.received:
            return tensor
        return tensor.detach().requires_grad_(name in self.with_gradient)

    def _returned(self, held: Held) -> Tensors:
        """Where the outputs do not depend on a received tensor its gradient is zero."""
        return {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in held.inputs.items()}


def _roots(held: Held, gradients: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What is differentiated, each with its gradient: outputs that others read, and the loss."""
    names = [name for name in held.roots if name in gradients]
    roots, given = [held.roots[name] for name in names], [gradients[name] for name in names]
    if held.loss is not None and held.loss.requires_grad:
        roots.append(held.loss)
        given.append(torch.ones_like(held.loss))
    return roots, given


def _trainable(part: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in part.parameters() if parameter.requires_grad]
