"""Layer graphs: what a model is made of, without costs.

A `LayerGraph` is a directed acyclic graph of layers. Edges carry tensors; edges with the same source and tensor
name are one tensor with several consumers. `GraphIndex` holds what the algorithms ask again and again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.errors import InputError

NOUN_CONFIG: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False, "strict": True}
"""How pydantic reads every noun: unknown fields, NaN, infinity and type coercion are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One node of the model: the unit that is never cut.

    `parameter_bytes` counts the parameters in the profile's dtype. `replicated_parameter_bytes` is the part of them
    that tensor parallelism copies instead of dividing (norm weights, biases). `tensor_collective_bytes_per_sample`
    is the activation volume that a tensor-parallel group all-reduces in one forward pass (with sequence parallelism:
    all-gathers and reduce-scatters of the same volume); the backward pass moves as much again. `visits` is the
    expected number of executions per sample. `entry` is the module at whose beginning the layer starts, where that is
    not the module that gives the layer its id (a final norm before `lm_head`): engines split there. Frozen layers
    (`trainable=False`) hold no gradient and no optimizer state.

    `expert_parameter_bytes` is the part of the divided parameters that belongs to routed experts: an expert degree
    divides it. `expert_dispatch_bytes_per_sample` are the rows that one sample sends to its experts in a forward pass
    (tokens x experts per token x row bytes); the results that come back are as many. One sample is expected to visit
    each of `num_experts` routed experts `expert_visits` times in a forward pass (tokens x experts per token / experts:
    even routing); the layer's costs hold all of these visits, so that nothing multiplies by them.

    `context_bytes_per_sample` are the keys and values of one sample, which context parallelism passes around its group;
    `kv_bytes_per_token` those of one token that generating text keeps (0 for attention without a cache).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    id: str
    op: str = ""
    parameter_bytes: int = 0
    replicated_parameter_bytes: int = 0
    tensor_collective_bytes_per_sample: int = 0
    expert_parameter_bytes: int = 0
    expert_dispatch_bytes_per_sample: int = 0
    num_experts: int = 0
    expert_visits: float = 0.0
    context_bytes_per_sample: int = 0
    kv_bytes_per_token: int = 0
    trainable: bool = True
    visits: float = 1.0
    entry: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor that `target` reads from `source`.

    `bytes_per_sample` is its size for one sample. `tensor` names the tensor among those of its source; two edges
    with the same source and tensor are one tensor, sent once to each stage that reads it. `has_gradient` is False
    for tensors through which no gradient flows (masks, indices).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    source: str
    target: str
    tensor: str = "output"
    bytes_per_sample: int = 0
    has_gradient: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedParameters:
    """Parameters that several layers share: each stage that reads them keeps one copy.

    `parameter_bytes` is the shared part, counted in `Layer.parameter_bytes` of every member. As in a layer,
    `replicated_parameter_bytes` and `expert_parameter_bytes` are the parts of it that tensor parallelism copies and
    that routed experts own.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    layers: tuple[str, ...]
    parameter_bytes: int
    replicated_parameter_bytes: int = 0
    expert_parameter_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """A model as a directed acyclic graph of layers.

    `tied` lists sets of layers that share parameters, `colocated` sets of layers that must be in one stage.
    Checked by `Problem`, not here.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...] = ()
    tied: tuple[TiedParameters, ...] = ()
    colocated: tuple[tuple[str, ...], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of the graph: who makes it, who reads it (layer positions), how big it is per sample."""

    source: int
    targets: tuple[int, ...]
    bytes_per_sample: int
    has_gradient: bool


class GraphIndex:
    """Positions, neighbours, tensors and orders of a valid graph.

    Layers are numbered in a topological order that keeps the file's order where it can (ties break by the position
    in `graph.layers`), so index `i` is both the position in `order` and the bit of layer `i` in a bitset.
    Building costs O(layers + edges) apart from the closures, which are Python-int bitsets.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.layers = topological_order(graph)
        self.position = {layer.id: i for i, layer in enumerate(self.layers)}
        self.tensors = _tensors(graph, self.position)
        self.predecessors: list[set[int]] = [set() for _ in self.layers]
        self.successors: list[set[int]] = [set() for _ in self.layers]
        for tensor in self.tensors:
            for target in tensor.targets:
                self.predecessors[target].add(tensor.source)
                self.successors[tensor.source].add(target)
        self.ancestors = self._closure()
        self.inputs: list[list[int]] = [[] for _ in self.layers]
        self.outputs: list[list[int]] = [[] for _ in self.layers]
        for number, tensor in enumerate(self.tensors):
            self.outputs[tensor.source].append(number)
            for target in tensor.targets:
                self.inputs[target].append(number)
        self.runs_backward = self._backward_flags()

    def __len__(self) -> int:
        return len(self.layers)

    def is_chain(self) -> bool:
        """True when layer i feeds only layer i+1: cuts are then the only convex partitions."""
        return all(self.predecessors[i] == ({i - 1} if i else set()) for i in range(len(self.layers)))

    def positions(self, ids: Iterable[str]) -> list[int]:
        """Sorted positions of the named layers."""
        return sorted(self.position[i] for i in ids)

    def _closure(self) -> list[int]:
        """ancestors[i]: bitset of all layers before i, without i."""
        closed = [0] * len(self.layers)
        for i in range(len(self.layers)):
            for p in self.predecessors[i]:
                closed[i] |= closed[p] | (1 << p)
        return closed

    def _backward_flags(self) -> list[bool]:
        """Whether a layer runs a backward pass: it or something before it is trainable."""
        flags: list[bool] = []
        for i, layer in enumerate(self.layers):
            flags.append((layer.trainable and layer.parameter_bytes > 0) or any(flags[p] for p in self.predecessors[i]))
        if not any(layer.parameter_bytes for layer in self.layers):
            return [True] * len(self.layers)
        return flags


def topological_order(graph: LayerGraph) -> tuple[Layer, ...]:
    """The layers, each after its predecessors and else as in the file; InputError that names a cycle."""
    position = {layer.id: i for i, layer in enumerate(graph.layers)}
    waiting = [0] * len(graph.layers)
    after: list[set[int]] = [set() for _ in graph.layers]
    for edge in graph.edges:
        source, target = position[edge.source], position[edge.target]
        if target not in after[source]:
            after[source].add(target)
            waiting[target] += 1
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for target in after[node]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, target)
    if len(order) < len(graph.layers):
        cycle = " -> ".join(_cycle(graph, after, waiting))
        raise InputError(f"the layer graph has a cycle: {cycle}; remove one of these edges", pointer="/graph/edges")
    return tuple(graph.layers[i] for i in order)


def _cycle(graph: LayerGraph, after: list[set[int]], waiting: list[int]) -> list[str]:
    """One cycle, as ids with the first repeated at the end."""
    before = {t: s for s, targets in enumerate(after) if waiting[s] for t in sorted(targets) if waiting[t]}
    node, seen = min(before), list[int]()
    while node not in seen:
        seen.append(node)
        node = before[node]
    loop = [node, *reversed(seen[seen.index(node) + 1 :]), node]
    return [graph.layers[i].id for i in loop]


def _tensors(graph: LayerGraph, position: dict[str, int]) -> tuple[Tensor, ...]:
    """One `Tensor` per (source, tensor name): consumers joined, the largest declared size taken."""
    grouped: dict[tuple[int, str], list[Edge]] = {}
    for edge in graph.edges:
        grouped.setdefault((position[edge.source], edge.tensor), []).append(edge)
    return tuple(
        Tensor(
            source=source,
            targets=tuple(sorted({position[e.target] for e in edges})),
            bytes_per_sample=max(e.bytes_per_sample for e in edges),
            has_gradient=any(e.has_gradient for e in edges),
        )
        for (source, _), edges in sorted(grouped.items())
    )
