"""A stage's backward pass in two parts: gradients of its inputs first, those of its weights when there is time.

Zero-bubble schedules (Qi et al. 2024) run them as actions I and W. The work is PyTorch's own (`stage_backward_input`,
`stage_backward_weight`), so that it costs here what it costs in PyTorch's schedules; this module adds the weights that
PyTorch's search does not find: those from which no path leads to an operator that depends on an input of the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


@dataclass(slots=True)
class WeightWork:
    """What the weights' part needs from the inputs' part. Run it once."""

    weights: list[nn.Parameter]
    groups: list[dict[str, Any]]
    edges: list[GradientEdge]
    gradients: list[torch.Tensor]
    missed: list[nn.Parameter]

    def run(self) -> None:
        """Add to the gradients of all weights."""
        stage_backward_weight(iter(self.weights), self.groups, retain_graph=bool(self.missed))
        if not self.missed:
            return
        made = torch.autograd.grad(self.edges, self.missed, self.gradients, allow_unused=True)
        for weight, gradient in zip(self.missed, made, strict=True):
            if gradient is not None:
                weight.grad = gradient.clone() if weight.grad is None else weight.grad + gradient


def input_gradients(
    roots: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    weights: Sequence[nn.Parameter],
) -> WeightWork:
    """Add to the gradients of `inputs` (leaves), and keep what those of `weights` need.

    `roots` are outputs or loss, each with its gradient; they are detached when this returns.
    """
    roots = [_detachable(root) for root in roots]
    edges = [get_gradient_edge(root) for root in roots]
    reached = _reached([edge.node for edge in edges])
    _, groups = stage_backward_input(list(roots), list(gradients), list(inputs), iter(weights))
    found = {node for group in groups for node in group["params"]}
    used = [weight for weight in weights if _node(weight) in reached]
    return WeightWork(
        weights=list(weights),
        groups=groups,
        edges=edges,
        gradients=list(gradients),
        missed=[weight for weight in used if _node(weight) not in found],
    )


def _detachable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that may be detached in place: no view, and not the input itself."""
    return tensor.clone() if tensor.is_leaf or tensor._is_view() else tensor


def _node(weight: nn.Parameter) -> Node:
    return get_gradient_edge(weight).node


def _reached(roots: Sequence[Node]) -> set[Node]:
    """All nodes of the graph below."""
    seen, stack = set(roots), list(roots)
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                stack.append(node)
    return seen
