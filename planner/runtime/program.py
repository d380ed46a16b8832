"""What the runtime runs: a model with data and loss, and its trace with the layer of every operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx, nn

from planner.graph import LayerGraph

LOSS_LAYER = "loss"
"""Id of the layer that stands for the loss function; it is colocated with the layer that feeds it."""

MakeBatch = Callable[[int, int], tuple[tuple[torch.Tensor, ...], torch.Tensor]]
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnableModel:
    """A model that can be trained for some steps.

    `make_batch(batch_size, seed)` returns the positional inputs of `model` and the target, with the batch in
    dimension 0 of each tensor. `loss(output, target)` is the mean over the batch, for the model's single output tensor.
    """

    name: str
    model: nn.Module
    make_batch: MakeBatch
    loss: LossFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """A runnable model's trace at one batch size.

    `module` computes what the model computes, its parameters and buffers under their original names.
    `layer_of_node` maps the name of every call node of `module.graph` to a layer id of `graph`; nodes that depend on
    no model input and no parameter (masks, positions) are absent: every stage that needs them computes them itself.
    """

    runnable: RunnableModel
    graph: LayerGraph
    module: fx.GraphModule
    layer_of_node: dict[str, str]
    batch_size: int

    def held_output_bytes(self, layer: str) -> int:
        """Bytes of the model's output, charged to the loss layer; 0 for the others.

        Autograd does not keep the output, but the engine holds it from a microbatch's forward to its backward pass, and
        the next microbatch's output is made before the last one's is let go (torch.distributed.pipelining; measured:
        docs/runtime.md).
        """
        if layer != LOSS_LAYER:
            return 0
        return self.batch_size * sum(edge.bytes_per_sample for edge in self.graph.edges if edge.target == LOSS_LAYER)


ProgramLoader = Callable[[int], TracedProgram]
"""Traces the model for a batch size; picklable, so that each rank can call it. Same seed, same weights on all ranks."""
