"""Activation recomputation: layer by layer, each keeping its inputs and nothing else until its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from planner.plan import Stage
from planner.runtime.program import LOSS_LAYER, TracedProgram
from planner.runtime.split import StageModule, split_layers
from planner.workload import Recomputation

Compute = Callable[..., tuple[torch.Tensor, ...]]
"""The tensors of a stage's `input_names` in, those of its `output_names` out."""


def computations(program: TracedProgram, stages: Sequence[Stage], parts: Sequence[StageModule]) -> list[Compute]:
    """How each stage is computed: by its module as it is, or layer by layer with recomputation."""
    full = [stage.recomputation is Recomputation.FULL for stage in stages]
    if not any(full):
        return list(parts)
    ids = [layer.id for layer in program.graph.layers if layer.id != LOSS_LAYER]
    layers = dict(zip(ids, split_layers(program, [[i] for i in ids]), strict=True))
    return [
        RecomputedStage(part, [layers[i] for i in ids if i in part.layer_ids]) if recomputes else part
        for part, recomputes in zip(parts, full, strict=True)
    ]


class RecomputedStage(nn.Module):
    """Computes what `part` computes, with the same parameters; `layers` in the order of the trace.

    A layer with batch statistics sees every microbatch twice, so its running statistics move twice as far.
    """

    def __init__(self, part: StageModule, layers: Sequence[StageModule]) -> None:
        super().__init__()
        self.input_names = part.input_names
        self.output_names = part.output_names
        self.layers = nn.ModuleList(layers)
        self._sequence = tuple(layers)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The part's outputs, by one checkpoint per layer."""
        known = dict(zip(self.input_names, inputs, strict=True))
        for layer in self._sequence:
            read = (known[name] for name in layer.input_names)
            made = checkpoint(layer, *read, use_reentrant=False, preserve_rng_state=False)
            known.update(zip(layer.output_names, made, strict=True))
        return tuple(known[name] for name in self.output_names)
