"""Stages that run layer by layer: to recompute each layer's activations, or to gather each layer's divided weights.

With full recomputation a layer keeps its inputs and nothing else until its backward pass. Under ZeRO 3 its weights are
there for its forward and for its backward pass, and at no other time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.checkpoint import checkpoint

from planner.plan import Stage
from planner.runtime.attention_core import recompute_cores
from planner.runtime.program import LOSS_LAYER, TracedProgram
from planner.runtime.shards import Shard, Shards, gather
from planner.runtime.split import StageModule, split_layers
from planner.workload import Recomputation

Tensors = tuple[torch.Tensor, ...]
Compute = Callable[..., Tensors]
"""The tensors of a stage's `input_names` in, those of its `output_names` out."""


def computations(
    program: TracedProgram, stages: Sequence[Stage], parts: Sequence[StageModule], shards: Shards | None = None
) -> list[Compute]:
    """How each stage is computed: by its module, or layer by layer. Changes modules that recompute attention cores."""
    shards = shards or Shards()
    selective = [stage.recomputation is Recomputation.SELECTIVE for stage in stages]
    again = [stage.recomputation is Recomputation.FULL for stage in stages]
    divided = [any(shard.piece is not None for shard in shards.among(part.parameters())) for part in parts]
    for part, recomputes_core, gathers in zip(parts, selective, divided, strict=True):
        if recomputes_core and not gathers:
            recompute_cores(part)
    if not any(again) and not any(divided):
        return list(parts)
    ids = [layer.id for layer in program.graph.layers if layer.id != LOSS_LAYER]
    layers = dict(zip(ids, split_layers(program, [[i] for i in ids]), strict=True))
    for part, recomputes_core in zip(parts, selective, strict=True):
        for layer in part.layer_ids:
            if recomputes_core and layer != LOSS_LAYER:
                recompute_cores(layers[layer])
    return [
        LayeredStage(part, [layers[i] for i in ids if i in part.layer_ids], shards, recomputes=recomputes)
        if recomputes or gathers
        else part
        for part, recomputes, gathers in zip(parts, again, divided, strict=True)
    ]


class LayeredStage(nn.Module):
    """Computes what `part` computes, with the same parameters; `layers` in the order of the trace.

    A layer with batch statistics that is recomputed sees every microbatch twice, so its running statistics move twice
    as far.
    """

    def __init__(self, part: StageModule, layers: Sequence[StageModule], shards: Shards, *, recomputes: bool) -> None:
        super().__init__()
        self.input_names = part.input_names
        self.output_names = part.output_names
        self.layers = nn.ModuleList(layers)
        self._sequence = [(layer, LayerWeights(shards.among(layer.parameters()))) for layer in layers]
        self._recomputes = recomputes

    def forward(self, *inputs: torch.Tensor) -> Tensors:
        """The part's outputs."""
        known = dict(zip(self.input_names, inputs, strict=True))
        for layer, weights in self._sequence:
            compute = _again(layer) if self._recomputes else layer
            made = weights.around(compute, tuple(known[name] for name in layer.input_names))
            known.update(zip(layer.output_names, made, strict=True))
        return tuple(known[name] for name in self.output_names)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The shards of one layer."""

    shards: list[Shard]

    def around(self, compute: Compute, read: Tensors) -> Tensors:
        """Compute with whole weights; hooks gather them before its backward pass and release them after it.

        Where no input needs a gradient nothing tells that the backward pass is over: the stage's pass releases.
        """
        if not any(shard.piece is not None for shard in self.shards):
            return compute(*read)
        read = tuple(tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in read)
        inputs = [tensor for tensor in read if tensor.requires_grad]
        if inputs:
            register_multi_grad_hook(inputs, lambda gradients: self._release())
        gather(self.shards)
        made = tuple(map(self._apart, compute(*read)))
        self._release()
        for tensor in made:
            if tensor.requires_grad:
                tensor.register_hook(self._before_backward)  # type: ignore[no-untyped-call]
        return made

    def _apart(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of what shares its storage with a weight: that is about to go."""
        storages = {shard.parameter.untyped_storage().data_ptr() for shard in self.shards}
        return tensor.clone() if tensor.untyped_storage().data_ptr() in storages else tensor

    def _before_backward(self, gradient: torch.Tensor) -> None:
        gather(self.shards)

    def _release(self) -> None:
        for shard in self.shards:
            shard.release()


def _again(layer: StageModule) -> Compute:
    def compute(*read: torch.Tensor) -> Tensors:
        made: Tensors = checkpoint(layer, *read, use_reentrant=False, preserve_rng_state=False)
        return made

    return compute
