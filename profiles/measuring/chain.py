"""Runs a traced program layer by layer, forward and backward, and lets an observer watch every step.

One *chain* is what a microbatch goes through: forward of all layers in order, the loss, its backward, backward of all
layers in reverse. Layers are joined by detached leaves, as pipeline stages are: the backward pass of a layer starts
from the gradients that its readers left on these leaves. Data needs no gradient, so the first layer computes no input
gradient. In a *split* chain the gradients of all inputs come first, those of all weights after them, as in zero-bubble
schedules. Works on real and on fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import fx, nn

from planner.errors import InputError
from planner.runtime.program import LOSS_LAYER, TracedProgram
from planner.runtime.split import StageModule, constants_module, model_input_names, output_name, split_layers
from planner.runtime.split_backward import input_gradients


class Phase(StrEnum):
    """What a layer does in one step of a chain."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"


Observer = Callable[[str, Phase], AbstractContextManager[object]]
"""Entered around each step: (layer id, phase)."""


@dataclass(slots=True)
class Step:
    """What the forward pass of one layer leaves for its backward pass."""

    outputs: dict[str, torch.Tensor]
    leaves: dict[str, torch.Tensor]


@dataclass(slots=True)
class Pass:
    """The state of one chain: tensors by name, what layers left for their backward pass, gradients by tensor name."""

    values: dict[str, torch.Tensor]
    steps: list[Step] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)

    def add_gradients(self, leaves: dict[str, torch.Tensor]) -> None:
        """Those that have come to the leaves; a tensor with several readers gets their sum."""
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                before = self.gradients.get(name)
                self.gradients[name] = leaf.grad if before is None else before + leaf.grad


Watcher = Callable[[str, object], None]
"""Told about every operator of a forward pass, before it runs (name, None) and after it (name, its result)."""


class LayerChain:
    """The layers of `program` as modules that share its parameters. `seed` chooses the batch.

    With a `watcher` the layers are run operator by operator.
    """

    def __init__(self, program: TracedProgram, seed: int = 0, watcher: Watcher | None = None) -> None:
        self.program = program
        self._watcher = watcher
        self.layer_ids = [layer.id for layer in program.graph.layers if layer.id != LOSS_LAYER]
        self._stages = split_layers(program, [[layer] for layer in self.layer_ids], inline_constants=False)
        self._inputs, self._target = program.runnable.make_batch(program.batch_size, seed)
        self._constants = self._compute_constants()
        self._output = output_name(program)

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """Masks, positions and the like: computed once, in no layer."""
        return self._constants

    def parameters(self, layer: str) -> list[nn.Parameter]:
        """The trainable parameters that a layer reads."""
        stage = self._stages[self.layer_ids.index(layer)]
        return [p for p in stage.parameters() if p.requires_grad]

    def run(self, observe: Observer, *, split: bool = False) -> None:
        """One chain, `split` or not. Gradients accumulate in the parameters."""
        state = Pass(dict(zip(model_input_names(self.program), self._inputs, strict=True)) | self._constants)
        for layer, stage in zip(self.layer_ids, self._stages, strict=True):
            state.steps.append(self._forward(layer, stage, state, observe))
        self._loss(state, observe)
        if split:
            self._split_backward(state, observe)
        else:
            for layer in reversed(self.layer_ids):
                self._backward(layer, state.steps.pop(), state, observe)

    def _compute_constants(self) -> dict[str, torch.Tensor]:
        module = constants_module(self.program)
        if not module.output_names:
            return {}
        with torch.no_grad():
            return dict(zip(module.output_names, module(), strict=True))

    def _forward(self, layer: str, stage: StageModule, state: Pass, observe: Observer) -> Step:
        leaves = {name: _leaf(state.values[name]) for name in stage.input_names}
        with observe(layer, Phase.FORWARD):
            made = _Watched(stage, self._watcher).run(*leaves.values()) if self._watcher else stage(*leaves.values())
        outputs = dict(zip(stage.output_names, made, strict=True))
        state.values |= outputs
        return Step(outputs, leaves)

    def _loss(self, state: Pass, observe: Observer) -> None:
        leaf = _leaf(state.values[self._output])
        if not leaf.requires_grad:
            raise InputError(
                f"the output of model {self.program.runnable.name!r} depends on no trainable parameter, so that it has "
                "no backward pass: leave requires_grad on for at least one parameter that the output depends on"
            )
        with observe(LOSS_LAYER, Phase.FORWARD):
            loss = self.program.runnable.loss(leaf, self._target)
        with observe(LOSS_LAYER, Phase.BACKWARD):
            torch.autograd.backward(loss)
        state.add_gradients({self._output: leaf})

    def _backward(self, layer: str, step: Step, state: Pass, observe: Observer) -> None:
        """Consumes the gradients of the layer's outputs and adds those of its inputs."""
        roots, incoming = _roots(step, state)
        if not roots:
            return
        with observe(layer, Phase.BACKWARD):
            torch.autograd.backward(roots, incoming)
        state.add_gradients(step.leaves)

    def _split_backward(self, state: Pass, observe: Observer) -> None:
        """Input gradients of all layers in reverse, then weight gradients in the same order."""
        state.values.clear()  # each layer's graph is held by its step alone
        late: list[tuple[str, Callable[[], None]]] = []
        for layer in reversed(self.layer_ids):
            weight_work = self._input_gradients(layer, state.steps.pop(), state, observe)
            if weight_work is not None:
                late.append((layer, weight_work))
            del weight_work
        late.reverse()
        while late:
            layer, weight_work = late.pop()
            with observe(layer, Phase.BACKWARD_WEIGHT):
                weight_work()
            del weight_work  # frees what the layer kept

    def _input_gradients(self, layer: str, step: Step, state: Pass, observe: Observer) -> Callable[[], None] | None:
        """What is left to do for the weights. Without an input that needs a gradient: everything."""
        roots, incoming = _roots(step, state)
        if not roots:
            return None
        inputs = [leaf for leaf in step.leaves.values() if leaf.requires_grad]
        if not inputs:
            return lambda: torch.autograd.backward(roots, incoming)
        weights = self.parameters(layer)
        with observe(layer, Phase.BACKWARD_INPUT):
            work = input_gradients(roots, incoming, inputs, weights)
        state.add_gradients(step.leaves)
        for leaf in inputs:  # the graph holds them until the weights' part has run, but not these gradients
            leaf.grad = None
        return work.run


class _Watched(fx.Interpreter):
    def __init__(self, stage: StageModule, watcher: Watcher) -> None:
        super().__init__(stage)
        self._watcher = watcher

    def run_node(self, n: fx.Node) -> Any:
        self._watcher(n.name, None)
        result = super().run_node(n)
        self._watcher(n.name, result)
        return result


def _leaf(value: torch.Tensor) -> torch.Tensor:
    """The tensor as a stage receives it: same storage, no history."""
    return value.detach().requires_grad_(value.requires_grad)


def _roots(step: Step, state: Pass) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The layer's outputs that got gradients, and these, which nobody else needs."""
    wanted = [name for name, tensor in step.outputs.items() if tensor.requires_grad and name in state.gradients]
    return [step.outputs[name] for name in wanted], [state.gradients.pop(name) for name in wanted]
