"""The JSON inputs of Piper (Tarnawski, Narayanan, Phanishayee 2021): layers with costs per tensor degree.

A node has, for every tensor degree, up to two variants: plain, and one that recomputes. `timePerSample` is forward and
backward of one microbatch on the whole group. `read` maps what our nouns can hold:

    forward_s            what recomputation adds to the plain time (a third of the time where it adds nothing)
    backward_s           the rest of the plain time
    activation_bytes     `memoryUsageA` of the plain variant
    parameter_bytes      `parameterSize` at degree 1; its replicated part is fitted to the other degrees
    memory               weights and gradients: `memoryUsageB` is twice `parameterSize` in the published files
    workload             `mbsInBatch` microbatches of one sample
    cluster              `maxDevices` devices, any two joined with the file's `bandwidth`

Recomputing variants and `syncTime` (bytes, in spite of the name, that a cut edge adds at a tensor-parallel end) have no
place there; `profiles.paper_models.piper_cost` keeps them, for Piper's own search model.
"""

from __future__ import annotations

import math

from planner.cluster import Cluster, Device, DeviceType, Link
from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph
from planner.profile import CostTable, LayerCost, Profile, Provenance
from planner.workload import Training
from profiles.importers._piper_file import Node, PiperFile, read_file
from profiles.importers.base import IMPORTERS, UNNAMED_DEVICE, ImportOptions
from profiles.model import ProfiledModel

BUS = "bus"
LONGEST_MICROBATCH_S = 30.0
"""Files whose layers take longer than this together count milliseconds (resnet.json does; the field has no unit)."""
FORWARD_SHARE = 1 / 3
"""Of the plain time, where no recomputing variant tells it."""
_KEYS = (b'"TMPCs"', b'"mbsInBatch"', b'"maxMemoryPerDevice"')


@IMPORTERS.register
class Piper:
    """Reads Piper's JSON, cluster and workload included."""

    name = "piper"

    def sniff(self, head: bytes) -> bool:
        """The field names are unmistakable."""
        return head.lstrip().startswith(b"{") and sum(key in head for key in _KEYS) >= 2

    def read(self, text: str, options: ImportOptions) -> ProfiledModel:
        """See the module."""
        file = read_file(text)
        device_type = options.device_type or UNNAMED_DEVICE
        return ProfiledModel(
            graph=layer_graph(file),
            profiles=(_profile(file, device_type),),
            cluster=_cluster(file, device_type),
            workload=Training(
                global_batch_size=file.num_microbatches, microbatch_size=1, optimizer_bytes_per_parameter=0.0
            ),
        )


def layer_graph(file: PiperFile) -> LayerGraph:
    """Edges of one source that carry different sizes are different tensors."""
    name, sizes = file.layer_ids(), dict[int, list[float]]()
    edges = []
    for arc in file.edges:
        known = sizes.setdefault(arc.source, [])
        if arc.num_bytes not in known:
            known.append(arc.num_bytes)
        number = known.index(arc.num_bytes)
        edges.append(
            Edge(
                source=name[arc.source],
                target=name[arc.target],
                tensor=f"output{number}" if number else "output",
                bytes_per_sample=math.ceil(arc.num_bytes),
            )
        )
    return LayerGraph(layers=tuple(_layer(node, name[node.id]) for node in file.nodes), edges=tuple(edges))


def _layer(node: Node, layer_id: str) -> Layer:
    if 1 not in node.degrees:
        raise InputError(f"node {node.id} has no TMPC at tensor degree 1: every layer needs one", pointer="/nodes")
    weights = node.at(1)[0].weight_bytes
    return Layer(
        id=layer_id,
        op=node.name,
        parameter_bytes=math.ceil(weights),
        replicated_parameter_bytes=math.floor(_replicated(node, weights)),
    )


def _replicated(node: Node, weights: float) -> float:
    """r with weights(t) = r + (weights - r) / t at the smallest degree t above 1."""
    above = [t for t in node.degrees if t > 1]
    if not above:
        return 0.0
    tensor = above[0]
    excess = node.at(tensor)[0].weight_bytes - weights / tensor
    return min(weights, max(0.0, excess * tensor / (tensor - 1)))


def _profile(file: PiperFile, device_type: str) -> Profile:
    name = file.layer_ids()
    unit = 1e-3 if sum(node.at(1)[0].time for node in file.nodes) > LONGEST_MICROBATCH_S else 1.0
    tables = []
    for tensor in sorted({t for node in file.nodes for t in node.degrees}):
        costs = {name[n.id]: _cost(n, tensor, unit) for n in file.nodes if tensor in n.degrees}
        tables.append(CostTable(microbatch_size=1, tensor=tensor, layers=costs))
    notes = (
        f"times are read as {'seconds' if unit == 1.0 else 'milliseconds'}: the file has no unit",
        "forward seconds are what recomputation adds; the file has only the sum of both passes",
        "recomputing variants and synchronisation of cut edges are in Piper's own search model only",
    )
    return Profile(
        device_type=device_type,
        tables=tuple(tables),
        provenance=Provenance(method="imported", tool="Piper JSON", notes=notes),
    )


def _cost(node: Node, tensor: int, unit: float) -> LayerCost:
    plain, *others = node.at(tensor)
    repeated = others[0].time - plain.time if others else 0.0
    forward = repeated if 0 < repeated < plain.time else plain.time * FORWARD_SHARE
    return LayerCost(
        forward_s=forward * unit,
        backward_s=(plain.time - forward) * unit,
        activation_bytes=math.ceil(plain.kept_bytes),
    )


def _cluster(file: PiperFile, device_type: str) -> Cluster:
    devices = tuple(Device(id=f"device{i}", type=device_type) for i in range(file.num_devices))
    ports = devices if len(devices) > 1 else ()
    return Cluster(
        name=f"{file.num_devices} devices",
        device_types=(DeviceType(name=device_type, memory_bytes=int(file.memory_bytes), source="Piper file"),),
        devices=devices,
        links=tuple(Link(a=d.id, b=BUS, bandwidth_bytes_per_s=file.bandwidth, shared=False) for d in ports),
    )
