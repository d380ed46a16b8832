"""Coarser problems: consecutive layers of the topological order joined to one, so that long chains can be searched.

Joining is a restriction (fewer places to cut), so a plan of the coarse problem is a plan of the fine one with the same
price; a bound of the coarse problem bounds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.costs.compute import selective_kept_bytes
from planner.graph import Edge, Layer, LayerGraph
from planner.plan import Plan
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile

ADDED_UP = (
    "parameter_bytes",
    "replicated_parameter_bytes",
    "expert_parameter_bytes",
    "tensor_collective_bytes_per_sample",
    "expert_dispatch_bytes_per_sample",
    "context_bytes_per_sample",
    "kv_bytes_per_token",
)
"""Fields of a layer that are sums over the joined ones."""


@dataclass(frozen=True, kw_only=True)
class Coarse:
    """A coarse problem, and the names of the fine layers in every coarse one."""

    problem: Problem
    members: dict[str, tuple[str, ...]]

    def refined(self, plan: Plan) -> Plan:
        """The coarse problem's plan as a plan of the fine problem."""
        stages = tuple(
            replace(stage, layers=tuple(name for block in stage.layers for name in self.members[block]))
            for stage in plan.stages
        )
        return replace(plan, stages=stages)


def fixed_boundaries(problem: Problem) -> set[int]:
    """Positions (before a layer) where a coarse layer has to end: around layers with shared parameters, and where
    training starts or stops."""
    index = problem.index
    found = {0, len(index)}
    for tied in problem.graph.tied:
        for name in tied.layers:
            found |= {index.position[name], index.position[name] + 1}
    flags = [(layer.trainable, runs) for layer, runs in zip(index.layers, index.runs_backward, strict=True)]
    found |= {i for i in range(1, len(flags)) if flags[i] != flags[i - 1]}
    return found


def coarsened(problem: Problem, boundaries: Sequence[int]) -> Coarse:
    """The problem with one layer per interval between neighbouring boundaries (sorted, from 0 to the number of layers,
    holding `fixed_boundaries`). O(layers + edges + tables)."""
    index = problem.index
    block_of = [0] * len(index)
    names: list[str] = []
    members: dict[str, tuple[str, ...]] = {}
    for number, (start, end) in enumerate(pairwise(boundaries)):
        block_of[start:end] = [number] * (end - start)
        names.append(f"block{number}")
        members[names[-1]] = tuple(layer.id for layer in index.layers[start:end])
    graph = LayerGraph(
        layers=tuple(
            _layer(problem, name, range(a, b)) for name, (a, b) in zip(names, pairwise(boundaries), strict=True)
        ),
        edges=tuple(_edges(problem, block_of, names)),
        tied=tuple(
            replace(tied, layers=tuple(names[block_of[index.position[name]]] for name in tied.layers))
            for tied in problem.graph.tied
        ),
        colocated=tuple(
            group
            for names_of in problem.graph.colocated
            if len(group := tuple(dict.fromkeys(names[block_of[index.position[n]]] for n in names_of))) > 1
        ),
        name=problem.graph.name,
    )
    profiles = tuple(_profile(problem, profile, members) for profile in problem.profiles)
    made = Problem(graph=graph, profiles=profiles, cluster=problem.cluster, workload=problem.workload)
    return Coarse(problem=made, members=members)


def _layer(problem: Problem, name: str, positions: range) -> Layer:
    inside = [problem.index.layers[i] for i in positions]
    return Layer(
        id=name,
        trainable=inside[0].trainable,
        **{field: sum(getattr(layer, field) for layer in inside) for field in ADDED_UP},
    )


def _edges(problem: Problem, block_of: list[int], names: list[str]) -> list[Edge]:
    """Every tensor that leaves its block, once per block that reads it."""
    edges = []
    for number, tensor in enumerate(problem.index.tensors):
        source = block_of[tensor.source]
        edges += [
            Edge(
                source=names[source],
                target=names[target],
                tensor=f"tensor{number}",
                bytes_per_sample=tensor.bytes_per_sample,
                has_gradient=tensor.has_gradient,
            )
            for target in sorted({block_of[t] for t in tensor.targets} - {source})
        ]
    return edges


def _profile(problem: Problem, profile: Profile, members: dict[str, tuple[str, ...]]) -> Profile:
    visits = {layer.id: layer.visits for layer in problem.graph.layers}
    tables = []
    for table in profile.tables:
        joined = {
            block: _cost([(table.layers[name], visits[name]) for name in inside])
            for block, inside in members.items()
            if all(name in table.layers for name in inside)
        }
        tables.append(
            CostTable(
                microbatch_size=table.microbatch_size,
                tensor=table.tensor,
                sequence_length=table.sequence_length,
                layers=joined,
            )
        )
    return replace(profile, tables=tuple(tables))


def _cost(inside: list[tuple[LayerCost, float]]) -> LayerCost:
    """The sum of costs with their visits; workspace is the largest.

    Selective recomputation is offered where a layer offers it: the others keep everything. What the weight pass gives
    back is known where a layer's is: the others count nothing.
    """
    split = all(cost.backward_input_s is not None for cost, _ in inside)
    offered = any(cost.selective_activation_bytes is not None for cost, _ in inside)
    weight_pass = any(cost.weight_pass_bytes is not None for cost, _ in inside)
    return LayerCost(
        forward_s=sum(cost.forward_s * visits for cost, visits in inside),
        backward_s=sum(cost.backward_s * visits for cost, visits in inside),
        backward_input_s=sum((cost.backward_input_s or 0.0) * visits for cost, visits in inside) if split else None,
        activation_bytes=_added(inside, lambda cost: cost.activation_bytes),
        workspace_bytes=max(cost.workspace_bytes for cost, _ in inside),
        selective_activation_bytes=_added(inside, selective_kept_bytes) if offered else None,
        selective_recompute_s=sum(cost.selective_recompute_s * visits for cost, visits in inside),
        sequence_activation_bytes=_added(inside, lambda cost: cost.sequence_activation_bytes),
        optimizer_s=sum(cost.optimizer_s for cost, _ in inside),
        weight_pass_bytes=_added(inside, lambda cost: cost.weight_pass_bytes or 0) if weight_pass else None,
    )


def _added(inside: list[tuple[LayerCost, float]], size: Callable[[LayerCost], int]) -> int:
    return sum(round(size(cost) * visits) for cost, visits in inside)
