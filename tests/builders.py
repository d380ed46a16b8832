"""Small problems in the conventions of the handed cases: times in ms, one flat network, bytes per microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner import (
    Cluster,
    CostTable,
    Device,
    DeviceType,
    Edge,
    Inference,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Problem,
    Profile,
    Training,
)

MS = 1e-3
WIDE_BYTES_PER_S = 1e15
AMPLE_BYTES = 2**49


@dataclass(frozen=True, kw_only=True)
class L:
    """One layer: ms of forward and backward per microbatch, parameters, bytes kept and sent on per microbatch."""

    f: float
    b: float = 0.0
    p: int = 0
    a: int = 0
    o: int = 0


def flat_cluster(num_devices: int, *, bandwidth: float = WIDE_BYTES_PER_S, memory: int = AMPLE_BYTES) -> Cluster:
    """Equal devices `d0`, `d1`, ... on one switch."""
    return Cluster(
        device_types=(DeviceType(name="device", memory_bytes=memory),),
        devices=tuple(Device(id=f"d{i}", type="device") for i in range(num_devices)),
        links=tuple(Link(a=f"d{i}", b="switch", bandwidth_bytes_per_s=bandwidth) for i in range(num_devices))
        if num_devices > 1
        else (),
    )


def chain_graph(layers: Sequence[L], microbatch_size: int, names: Sequence[str] | None = None) -> LayerGraph:
    """A chain; layer i sends `o / microbatch_size` bytes per sample to layer i + 1."""
    ids = list(names or (f"layer{i}" for i in range(len(layers))))
    assert all(layer.o % microbatch_size == 0 for layer in layers)
    return LayerGraph(
        layers=tuple(Layer(id=name, parameter_bytes=layer.p) for name, layer in zip(ids, layers, strict=True)),
        edges=tuple(
            Edge(source=a, target=b, bytes_per_sample=layer.o // microbatch_size)
            for a, b, layer in zip(ids, ids[1:], layers, strict=False)
        ),
    )


def profile_of(graph: LayerGraph, layers: Sequence[L], microbatch_size: int, device_type: str = "device") -> Profile:
    """Costs in seconds; one byte per parameter, so that the workload's bytes per parameter count parameters."""
    return Profile(
        device_type=device_type,
        dtype="int8",
        tables=(
            CostTable(
                microbatch_size=microbatch_size,
                layers={
                    layer.id: LayerCost(forward_s=cost.f * MS, backward_s=cost.b * MS, activation_bytes=cost.a)
                    for layer, cost in zip(graph.layers, layers, strict=True)
                },
            ),
        ),
    )


def chain_problem(
    layers: Sequence[L],
    *,
    devices: int,
    microbatches: int,
    microbatch_size: int = 1,
    bandwidth_per_ms: float = WIDE_BYTES_PER_S * MS,
    memory: int = AMPLE_BYTES,
    static_bytes: float = 1.0,
    gradient_bytes: float = 0.0,
    names: Sequence[str] | None = None,
    inference: bool = False,
    **workload: Any,
) -> Problem:
    """A chain on equal devices; `static_bytes` and `gradient_bytes` are per parameter."""
    graph = chain_graph(layers, microbatch_size, names)
    batch = {"global_batch_size": microbatches * microbatch_size, "microbatch_size": microbatch_size}
    work: Training | Inference
    if inference:
        work = Inference(**batch, weight_bytes_per_parameter=static_bytes, **workload)
    else:
        work = Training(
            **batch,
            weight_bytes_per_parameter=static_bytes,
            gradient_bytes_per_parameter=gradient_bytes,
            optimizer_bytes_per_parameter=0.0,
            **workload,
        )
    return Problem(
        graph=graph,
        profiles=(profile_of(graph, layers, microbatch_size),),
        cluster=flat_cluster(devices, bandwidth=bandwidth_per_ms / MS, memory=memory),
        workload=work,
    )
