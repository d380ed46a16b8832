"""A stage's backward pass in two parts: gradients of its inputs first, those of its weights when there is time.

Zero-bubble schedules (Qi et al. 2024) run them as actions I and W. The work is PyTorch's own (`stage_backward_input`,
`stage_backward_weight`), so that it costs here what it costs in PyTorch's schedules; `loose_weights` adds the weights
for which these are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from planner.runtime.loose_weights import Group, LooseWeights, is_loose, next_on, nodes_below, nodes_towards


@dataclass(slots=True)
class WeightWork:
    """What the weights' part needs from the inputs' part. Run it once."""

    weights: list[nn.Parameter]
    groups: list[Group]
    loose: LooseWeights

    def run(self) -> None:
        """Add to the gradients of all weights. PyTorch's part comes last: it frees the graph as it goes."""
        self.loose.run()
        stage_backward_weight(iter(self.weights), self.groups)


def input_gradients(
    roots: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    weights: Sequence[nn.Parameter],
) -> WeightWork:
    """Add to the gradients of `inputs` (leaves), and keep what those of `weights` need.

    `roots` are outputs or loss, each with its gradient. Let them go when this returns: they hold the graph.
    """
    roots = [_handle(root) for root in roots]
    edges = [get_gradient_edge(root) for root in roots]
    path = nodes_towards([get_gradient_edge(leaf).node for leaf in inputs], [edge.node for edge in edges])
    apart = [(edge, given) for edge, given in zip(edges, gradients, strict=True) if edge.node not in path]
    below = nodes_below([edge.node for edge, _ in apart])
    _, groups = stage_backward_input(list(roots), list(gradients), list(inputs), iter(weights))
    loose = [group for group in groups if is_loose(group, below)]
    seeds = {n: g for group in loose for n, g in zip(group["intermediates"], group["grads"], strict=True)}
    targets = below.union(*(group["params"] for group in loose))
    return WeightWork(
        weights=list(weights),
        groups=[group for group in groups if not is_loose(group, below)],
        loose=LooseWeights(
            weights=[weight for weight in weights if get_gradient_edge(weight).node in targets],
            seeds=seeds,
            apart=apart,
            ends=next_on(path, seeds),
        ),
    )


def _handle(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and graph, for PyTorch to detach in place: no leaf, no view, saved by no operator."""
    handle: torch.Tensor = torch.ops.aten._unsafe_view.default(tensor, tensor.shape)
    return handle
