"""Our own instance format: one model at batch size 1, priced for one device, as small as JSON gets.

name, source, device       the model, where its sizes are from, the device that it is priced for
devices, memory_bytes      what it ships with: so many devices of so many bytes
bandwidth_bytes_per_s      between any two of them
layers                     [id, forward seconds, parameter bytes] each, in topological order
tensors                    [maker, readers, bytes] each, as positions in `layers`
colocated                  lists of positions that share a stage
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.devices import accelerators
from planner import codec
from planner.graph import NOUN_CONFIG, Edge, Layer, LayerGraph
from planner.profile import CostTable, LayerCost, Profile, Provenance
from planner.workload import Communication, Inference
from profiles.model import ProfiledModel

NUM_MICROBATCHES = 64
"""Samples that stream through in an estimate, as for device-placement files."""
WEIGHT_BYTES_PER_PARAMETER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactInstance:
    """The file as it is."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    name: str
    source: str
    device: str
    devices: int
    memory_bytes: int
    bandwidth_bytes_per_s: float
    layers: list[tuple[str, float, int]]
    tensors: list[tuple[int, list[int], int]]
    colocated: list[list[int]] = field(default_factory=list)


def from_compact(document: Any) -> ProfiledModel:
    """Graph, costs, devices and workload of a parsed file; InputError where it is malformed."""
    file = codec.decode(CompactInstance, document)
    return ProfiledModel(
        graph=_graph(file),
        profiles=(_profile(file),),
        cluster=accelerators(
            file.device,
            file.devices,
            bandwidth_bytes_per_s=file.bandwidth_bytes_per_s,
            memory_bytes=file.memory_bytes,
        ),
        workload=Inference(
            global_batch_size=NUM_MICROBATCHES,
            microbatch_size=1,
            weight_bytes_per_parameter=WEIGHT_BYTES_PER_PARAMETER,
            communication=Communication.BLOCKING,
        ),
    )


def _graph(file: CompactInstance) -> LayerGraph:
    ids = [name for name, _, _ in file.layers]
    return LayerGraph(
        name=file.name,
        layers=tuple(Layer(id=name, parameter_bytes=size) for name, _, size in file.layers),
        edges=tuple(
            Edge(source=ids[maker], target=ids[reader], tensor=str(number), bytes_per_sample=size)
            for number, (maker, readers, size) in enumerate(file.tensors)
            for reader in readers
        ),
        colocated=tuple(tuple(ids[i] for i in members) for members in file.colocated),
    )


def _profile(file: CompactInstance) -> Profile:
    costs = {name: LayerCost(forward_s=seconds) for name, seconds, _ in file.layers}
    return Profile(
        device_type=file.device,
        dtype="bfloat16",
        tables=(CostTable(microbatch_size=1, layers=costs),),
        provenance=Provenance(method="imported", tool="benchmarks.export_instances", notes=(file.source,)),
    )
