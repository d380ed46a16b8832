"""Hypothesis strategies of small problems, and what tests of optimizers share.

Seconds are multiples of 1/4 and bytes multiples of 4, so that sums are exact, ties are ties and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from planner.cluster import Cluster, Device, DeviceType, Link
from planner.costs.model import CostModel
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.optimizers.base import OPTIMIZERS, Candidate, Clock, Outcome, SearchContext
from planner.options import GENERAL_MODELS, SEARCHED_OBJECTIVES, Replication, SearchOptions
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.workload import Communication, Inference, Recomputation, ReplicaMode, Training

SWITCH = "switch"
RELATIVE = 1e-9

quarters = st.integers(0, 16).map(lambda n: n / 4)
words = st.integers(0, 16).map(lambda n: 4 * n)
"""Byte counts of whole float32 elements."""


def counts(low: int, high: int) -> st.SearchStrategy[int]:
    """Numbers of layers, the larger ones more often."""
    return st.sampled_from([n for n in range(low, high + 1) for _ in range(n)])


def assert_same_objective(a: Outcome, b: Outcome) -> None:
    """Both found nothing, or their best candidates have the same value up to 1e-9 relative."""
    assert bool(a.candidates) == bool(b.candidates), (best(a), best(b))
    if a.candidates:
        x, y = a.candidates[0].objective_s, b.candidates[0].objective_s
        assert abs(x - y) <= RELATIVE * max(1.0, abs(x), abs(y)), (x, y)


def best(outcome: Outcome) -> Candidate | None:
    """The first candidate."""
    return outcome.candidates[0] if outcome.candidates else None


def context_of(problem: Problem, options: SearchOptions, limit_s: float = 600.0) -> SearchContext:
    """A search context with a fresh cost model."""
    return SearchContext(problem=problem, options=options, costs=CostModel(problem), clock=Clock(limit_s))


def search(name: str, problem: Problem, options: SearchOptions) -> Outcome:
    """Run one optimizer, which must support the problem."""
    context = context_of(problem, options)
    assert OPTIMIZERS[name].supports(context) == ""
    return OPTIMIZERS[name].search(context)


def flat_cluster(
    types: list[str],
    *,
    memory_bytes: dict[str, int],
    bandwidth: float = 16.0,
    latency_s: float = 0.0,
    shared: bool = True,
) -> Cluster:
    """Devices of the listed types around one switch, so that every pair has the same route."""
    names = [f"d{number}" for number in range(len(types))]
    links = tuple(
        Link(a=name, b=SWITCH, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s / 2, shared=shared)
        for name in names
    )
    return Cluster(
        device_types=tuple(DeviceType(name=kind, memory_bytes=memory_bytes[kind]) for kind in sorted(set(types))),
        devices=tuple(Device(id=name, type=kind) for name, kind in zip(names, types, strict=True)),
        links=links if len(names) > 1 else (),
    )


def chain_problem(
    seconds: list[tuple[float, float]],
    *,
    devices: int,
    num_microbatches: int,
    microbatch_size: int = 1,
    parameter_bytes: list[int] | None = None,
    output_bytes: list[int] | None = None,
    activation_bytes: list[int] | None = None,
    memory_bytes: int = 2**40,
    bandwidth: float = 2.0**40,
    latency_s: float = 0.0,
    workload: dict[str, Any] | None = None,
) -> Problem:
    """A chain of (forward, backward) seconds per layer on equal devices; sizes default to zero."""
    n = len(seconds)
    parameters, outputs = parameter_bytes or [0] * n, output_bytes or [0] * n
    kept = activation_bytes or [0] * n
    layers = tuple(Layer(id=f"L{i}", parameter_bytes=parameters[i]) for i in range(n))
    costs = {
        f"L{i}": LayerCost(forward_s=f, backward_s=b, activation_bytes=kept[i]) for i, (f, b) in enumerate(seconds)
    }
    edges = tuple(Edge(source=f"L{i}", target=f"L{i + 1}", bytes_per_sample=outputs[i]) for i in range(n - 1))
    return Problem(
        graph=LayerGraph(layers=layers, edges=edges),
        profiles=(Profile(device_type="gpu", tables=(CostTable(microbatch_size=microbatch_size, layers=costs),)),),
        cluster=flat_cluster(
            ["gpu"] * devices, memory_bytes={"gpu": memory_bytes}, bandwidth=bandwidth, latency_s=latency_s
        ),
        workload=Training(
            **{
                "global_batch_size": microbatch_size * num_microbatches,
                "microbatch_size": microbatch_size,
                **(workload or {}),
            }
        ),
    )


def with_weight_pass(problem: Problem, num_bytes: Sequence[int | None]) -> Problem:
    """The problem with these bytes that the layers hold from I to W, in its first profile."""
    profile = problem.profiles[0]
    tables = tuple(
        replace(
            table,
            layers={
                name: replace(cost, weight_pass_bytes=n)
                for (name, cost), n in zip(table.layers.items(), num_bytes, strict=True)
            },
        )
        for table in profile.tables
    )
    return replace(problem, profiles=(replace(profile, tables=tables), *problem.profiles[1:]))


@st.composite
def workloads(draw: st.DrawFn, *, devices: int = 1, most_samples: int = 12) -> Training | Inference:
    """Training and inference, free or fixed batches, both communication models, recomputation, ZeRO, tensor degree."""
    batch = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6, 8, 12) if n <= most_samples]))
    fixed = draw(st.none() | st.sampled_from([d for d in range(1, batch + 1) if batch % d == 0]))
    communication = draw(st.sampled_from(Communication))
    tensor = draw(st.sampled_from([1, 1, 1, min(2, devices)]))
    if draw(st.integers(0, 3)) == 0:
        return Inference(global_batch_size=batch, microbatch_size=fixed, communication=communication, tensor=tensor)
    return Training(
        global_batch_size=batch,
        microbatch_size=fixed,
        communication=communication,
        tensor=tensor,
        recomputation=draw(st.sampled_from([Recomputation.NONE, Recomputation.NONE, Recomputation.FULL])),
        zero=draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
    )


@st.composite
def search_options(draw: st.DrawFn, *, replications: tuple[Replication, ...] = tuple(Replication)) -> SearchOptions:
    """Objectives, search models, replication and replica mode."""
    return SearchOptions(
        objective=draw(st.sampled_from(SEARCHED_OBJECTIVES)),
        search_model=draw(st.none() | st.sampled_from(GENERAL_MODELS)),
        schedule=draw(st.sampled_from(["auto", "1f1b", "gpipe"])),
        replication=draw(st.sampled_from(replications)),
        replica_mode=draw(st.sampled_from(ReplicaMode)),
    )


@st.composite
def layer_costs(draw: st.DrawFn, *, scale: int = 1) -> LayerCost:
    """Costs on the grid; `scale` multiplies what grows with the samples."""
    return LayerCost(
        forward_s=scale * draw(quarters),
        backward_s=scale * draw(quarters),
        activation_bytes=scale * draw(words),
        workspace_bytes=scale * draw(st.sampled_from([0, 0, 4, 32])),
        optimizer_s=draw(st.sampled_from([0.0, 0.0, 0.25, 1.0])),
        weight_pass_bytes=draw(st.none() | words.map(lambda n: scale * n)),
    )


@st.composite
def clusters(draw: st.DrawFn, *, one_type: bool = False, most_devices: int = 4) -> Cluster:
    """1 to 4 devices around a switch, one or two types, memory that sometimes binds, latency sometimes."""
    count = draw(st.sampled_from([n for n in (1, 2, 3, 3, 4, 4, 4) if n <= most_devices]))
    kinds = ["gpu"] if one_type or draw(st.integers(0, 3)) else ["gpu", "old"]
    types = [draw(st.sampled_from(kinds)) for _ in range(count)]
    sizes = st.sampled_from([2**20, 2**20, 1500, 750, 500, 250])
    return flat_cluster(
        types,
        memory_bytes={kind: draw(sizes) for kind in sorted(set(types))},
        bandwidth=draw(st.sampled_from([8.0, 64.0, 512.0, 2.0**20])),
        latency_s=draw(st.sampled_from([0.0, 0.0, 0.25])),
        shared=draw(st.booleans()),
    )


@st.composite
def layers_of(draw: st.DrawFn, count: int) -> list[Layer]:
    """Layers with a frozen prefix sometimes."""
    frozen = draw(st.sampled_from([0, 0, 0, 1, 2]))
    return [
        Layer(
            id=f"L{i}",
            parameter_bytes=(size := draw(words)),
            replicated_parameter_bytes=draw(st.sampled_from([0, 0, min(8, size)])),
            tensor_collective_bytes_per_sample=draw(st.sampled_from([0, 0, 16])),
            trainable=i >= frozen,
        )
        for i in range(count)
    ]


def profiles_of(draw: st.DrawFn, layers: list[Layer], cluster: Cluster) -> tuple[Profile, ...]:
    """One profile per device type, measured at microbatch size 1 and sometimes at 2; overhead sometimes."""
    profiles = []
    for kind in cluster.device_types:
        tables = [CostTable(microbatch_size=1, layers={x.id: draw(layer_costs()) for x in layers})]
        if draw(st.booleans()):
            tables.append(CostTable(microbatch_size=2, layers={k: _more(draw, c) for k, c in tables[0].layers.items()}))
        overhead = draw(st.sampled_from([0.0, 0.0, 0.25]))
        profiles.append(Profile(device_type=kind.name, tables=tuple(tables), action_overhead_s=overhead))
    return tuple(profiles)


def _more(draw: st.DrawFn, cost: LayerCost) -> LayerCost:
    """The same layer with twice the samples: at least as dear, at most twice."""
    return replace(
        cost,
        forward_s=cost.forward_s * draw(st.sampled_from([1.0, 1.5, 2.0])),
        backward_s=cost.backward_s * draw(st.sampled_from([1.0, 1.5, 2.0])),
        activation_bytes=cost.activation_bytes * 2,
        weight_pass_bytes=None if cost.weight_pass_bytes is None else cost.weight_pass_bytes * 2,
    )


@st.composite
def chain_problems(
    draw: st.DrawFn, *, most_layers: int = 6, most_devices: int = 4, one_type: bool = False, most_samples: int = 12
) -> Problem:
    """Chains of 1 to 6 layers on 1 to 4 devices; sometimes the first and the last layer share parameters."""
    layers = draw(layers_of(draw(counts(1, most_layers))))
    edges = tuple(
        Edge(source=a.id, target=b.id, bytes_per_sample=draw(words), has_gradient=bool(draw(st.integers(0, 7))))
        for a, b in pairwise(layers)
    )
    cluster = draw(clusters(one_type=one_type, most_devices=most_devices))
    graph = LayerGraph(layers=tuple(layers), edges=edges, tied=_tied(draw, layers), colocated=_colocated(draw, layers))
    return Problem(
        graph=graph,
        profiles=profiles_of(draw, layers, cluster),
        cluster=cluster,
        workload=draw(workloads(devices=len(cluster.devices), most_samples=most_samples)),
    )


@st.composite
def dag_problems(draw: st.DrawFn, *, most_layers: int = 6, most_devices: int = 3, most_samples: int = 4) -> Problem:
    """Random layered graphs on equal devices; tensors with several readers, sources and sinks at will."""
    layers = draw(layers_of(draw(counts(2, most_layers))))
    edges = []
    for target in range(1, len(layers)):
        for source in draw(st.sets(st.integers(0, target - 1), max_size=2)):
            size, back = 4 * (source % 5 + 1), source % 7 != 6
            tensor = draw(st.sampled_from(["output", "output", "other"]))
            edges.append(
                Edge(
                    source=layers[source].id,
                    target=layers[target].id,
                    tensor=tensor,
                    bytes_per_sample=size,
                    has_gradient=back,
                )
            )
    cluster = draw(clusters(one_type=True, most_devices=most_devices))
    graph = LayerGraph(
        layers=tuple(layers), edges=tuple(edges), tied=_tied(draw, layers), colocated=_colocated(draw, layers)
    )
    return Problem(
        graph=graph,
        profiles=profiles_of(draw, layers, cluster),
        cluster=cluster,
        workload=draw(workloads(devices=len(cluster.devices), most_samples=most_samples)),
    )


def _tied(draw: st.DrawFn, layers: list[Layer]) -> tuple[TiedParameters, ...]:
    if len(layers) < 2 or draw(st.integers(0, 3)):
        return ()
    shared = shared_parameters(layers[0], layers[-1])
    return (shared,) if shared.parameter_bytes else ()


def shared_parameters(first: Layer, second: Layer) -> TiedParameters:
    """The most that two layers can share, kind by kind."""
    ends = (first, second)
    copied = min(layer.replicated_parameter_bytes for layer in ends)
    experts = min(layer.expert_parameter_bytes for layer in ends)
    dense = min(x.parameter_bytes - x.replicated_parameter_bytes - x.expert_parameter_bytes for x in ends)
    return TiedParameters(
        layers=(first.id, second.id),
        parameter_bytes=dense + copied + experts,
        replicated_parameter_bytes=copied,
        expert_parameter_bytes=experts,
    )


def _colocated(draw: st.DrawFn, layers: list[Layer]) -> tuple[tuple[str, ...], ...]:
    if len(layers) < 3 or draw(st.integers(0, 5)):
        return ()
    a, b = sorted(draw(st.lists(st.integers(0, len(layers) - 1), min_size=2, max_size=2, unique=True)))
    return ((layers[a].id, layers[b].id),)
