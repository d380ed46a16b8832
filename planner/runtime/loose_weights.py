"""Gradients of the weights for which PyTorch's split of the backward pass (torch 2.13) is wrong or fails.

PyTorch looks, from each weight upwards, for the first operators on the *path*: those that depend on an input of the
stage. It keeps the gradients that come to them, and starts from these later. It

* never sees outputs that depend on no input. A weight below such an output gets none of that part of its gradient:
  T5's relative attention bias is read by every block and is an output of the first one;
* computes the path between two places where one weight is read a second time, and frees it, so that other weights read
  there fail ("backward through the graph a second time"): ALBERT's blocks, or two of T5's blocks in a stage.

Here all such weights get their gradients in one pass, which starts from the kept gradients and those outputs, and does
not follow the path: what comes to it from above is taken away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node

Group = dict[str, Any]
"""Of PyTorch: nodes of weights (`params`) that are reached by the same `intermediates`, where `grads` came to these."""
Gradients = tuple[torch.Tensor | None, ...]


@dataclass(slots=True)
class LooseWeights:
    """`seeds` are the gradients kept on the path, `apart` the outputs beside it, each with its gradient.

    `ends` are the next nodes on the path, where the pass stops.
    """

    weights: list[nn.Parameter]
    seeds: dict[Node, Gradients]
    apart: list[tuple[GradientEdge, torch.Tensor]]
    ends: set[Node]

    def run(self) -> None:
        """Add to the gradients of `weights`. Keeps the graph."""
        if not self.weights:
            return
        fixed = dict.fromkeys(self.ends) | self.seeds
        handles = [node.register_prehook(_replaced_by(gradients)) for node, gradients in fixed.items()]
        try:
            made = self._differentiated()
        finally:
            for handle in handles:
                handle.remove()
        for weight, gradient in zip(self.weights, made, strict=True):
            if gradient is not None:
                weight.grad = gradient.clone() if weight.grad is None else weight.grad + gradient

    def _differentiated(self) -> Gradients:
        kept = [(GradientEdge(n, i), g) for n, all_ in self.seeds.items() for i, g in enumerate(all_) if g is not None]
        edges, gradients = zip(*kept, *self.apart, strict=True)
        made: Gradients = torch.autograd.grad(edges, self.weights, gradients, retain_graph=True, allow_unused=True)
        return made


def is_loose(group: Group, beside: AbstractSet[Node]) -> bool:
    """Whether weights of a group are read in several places, or below an output `beside` the path."""
    return len(group["intermediates"]) > 1 or not beside.isdisjoint(group["params"])


def next_on(path: AbstractSet[Node], nodes: Iterable[Node]) -> set[Node]:
    """The nodes of the path that follow these ones."""
    return {child for node in nodes for child in _children(node) if child in path}


def nodes_below(roots: Iterable[Node]) -> set[Node]:
    """The roots and all that they reach."""
    return _closure(roots, _children)


def nodes_towards(targets: Sequence[Node], roots: Sequence[Node]) -> set[Node]:
    """Of the nodes below the roots those that reach a target, and the targets."""
    parents: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes_below(roots):
        for child in _children(node):
            parents[child].append(node)
    return _closure(targets, parents.__getitem__)


def _closure(start: Iterable[Node], nexts: Callable[[Node], Sequence[Node]]) -> set[Node]:
    seen = set(start)
    stack = list(seen)
    while stack:
        new = [node for node in nexts(stack.pop()) if node not in seen]
        seen.update(new)
        stack.extend(new)
    return seen


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _replaced_by(gradients: Gradients | None) -> Callable[[Gradients], Gradients]:
    return lambda given: (None,) * len(given) if gradients is None else gradients
