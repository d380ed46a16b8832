"""The JSON inputs of Tarnawski et al. 2020 (repository `dnn-partitioning`): nodes, edges, and the devices to use.

`fpga` stands for accelerator. Latencies and edge costs are used as milliseconds, as the repository's own programs do.
An edge's `cost` is the transfer time of its source's output, paid once at each end; all edges of a source carry the
same tensor. Sizes are bytes and cover weights and buffers. Nodes of one `colorClass` share a device.

Mapped to our nouns so that every number comes out again:

    cluster     `maxFPGAs` accelerators of `maxSizePerFPGA` bytes, `maxCPUs` CPUs without a limit, one bus between them
    transfers   bytes / bandwidth of the bus = cost (profiles.importers._scale)
    size        parameter bytes of a float32 profile, 4 bytes per parameter, no gradients and no optimizer state
    workload    64 microbatches of one sample, blocking communication; the file's times are those of one sample

Training files hold backward nodes: profiles.importers._fold. Received tensors are counted as buffers on top of `size`
by our memory model, which the paper's does not do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from planner.checks import MAX_BYTES
from planner.cluster import Cluster, Device, DeviceKind, DeviceType, Link
from planner.graph import Edge, GraphIndex, Layer, LayerGraph
from planner.profile import CostTable, LayerCost, Profile, Provenance
from planner.workload import Communication, Inference, Training
from profiles.importers._fold import fold
from profiles.importers._folded import Folded, FoldedArc, FoldedNode
from profiles.importers._placement_file import Node, PlacementFile, read_file
from profiles.importers._scale import BusScale, bus_scale
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.model import ProfiledModel

ACCELERATOR = "accelerator"
CPU = "cpu"
BUS = "bus"
NUM_MICROBATCHES = 64
"""The file's model is per sample and names no batch; this many samples stream through in an estimate."""
WEIGHT_BYTES_PER_PARAMETER = 4.0
"""Of float32, so that the weights of a layer take `parameter_bytes`, that is its `size`."""
_KEYS = (b'"maxSizePerFPGA"', b'"maxFPGAs"', b'"supportedOnFpga"', b'"fpgaLatency"')


@IMPORTERS.register
class DevicePlacement:
    """Reads the device-placement JSON, cluster and workload included."""

    name = "device-placement"

    def sniff(self, head: bytes) -> bool:
        """The field names are unmistakable."""
        return head.lstrip().startswith(b"{") and any(key in head for key in _KEYS)

    def read(self, text: str, options: ImportOptions) -> ProfiledModel:
        """See the module; `options` have nothing to add, the file is complete."""
        file = read_file(text)
        folded = fold(file)
        scale = _scale(file, folded)
        graph = _graph(folded, scale)
        return ProfiledModel(
            graph=graph,
            profiles=_profiles(file, folded, _backward_layers(graph), scale),
            cluster=_cluster(file, scale),
            workload=_workload(folded),
        )


def _scale(file: PlacementFile, folded: Folded) -> BusScale:
    """A scale at which the bytes of every tensor are whole, halves included where tensors move both ways."""
    share = 1.0 if folded.mirrored else 0.5
    return bus_scale([share * arc.cost for arc in file.edges], [share * arc.size for arc in file.edges])


def _graph(folded: Folded, scale: BusScale) -> LayerGraph:
    name = _names(folded)
    layers = tuple(Layer(id=name[node.forward.id], parameter_bytes=math.ceil(node.size)) for node in folded.nodes)
    edges = tuple(Edge(source=name[arc.source], target=name[arc.target]) for arc in folded.arcs)
    trained = _backward_layers(LayerGraph(layers=layers, edges=edges))
    return LayerGraph(
        layers=layers,
        edges=tuple(_edge(folded, arc, name, scale, trained) for arc in folded.arcs),
        colocated=tuple(tuple(name[member] for member in members) for members in folded.colocated),
    )


def _edge(folded: Folded, arc: FoldedArc, name: dict[int, str], scale: BusScale, trained: set[str]) -> Edge:
    """A tensor that moves both ways does so where its maker runs a backward pass; elsewhere all of it moves forward."""
    halves = arc.both_ways and name[arc.source] in trained
    return Edge(
        source=name[arc.source],
        target=name[arc.target],
        tensor=arc.tensor,
        bytes_per_sample=scale.bytes_of(arc.cost / 2 if halves else arc.cost),
        has_gradient=folded.mirrored or halves,
    )


def _backward_layers(graph: LayerGraph) -> set[str]:
    """Layers with something to train at or before them: our cost model runs a backward pass on these only."""
    index = GraphIndex(graph)
    return {layer.id for layer, runs in zip(index.layers, index.runs_backward, strict=True) if runs}


def _profiles(file: PlacementFile, folded: Folded, trained: set[str], scale: BusScale) -> tuple[Profile, ...]:
    """One profile per kind of device that the file has; what an accelerator cannot run is missing there."""
    made = []
    if file.num_accelerators:
        runnable = [node for node in folded.nodes if _on_accelerator(node)]
        made.append(_profile(ACCELERATOR, folded, runnable, trained, lambda node: node.accelerator_ms, scale))
    if file.num_cpus:
        made.append(_profile(CPU, folded, folded.nodes, trained, lambda node: node.cpu_ms, scale))
    return tuple(made)


def _profile(
    device_type: str,
    folded: Folded,
    nodes: Sequence[FoldedNode],
    trained: set[str],
    milliseconds: Callable[[Node], float],
    scale: BusScale,
) -> Profile:
    name = _names(folded)
    costs = {name[node.forward.id]: _cost(node, milliseconds, name[node.forward.id] in trained) for node in nodes}
    notes = (
        "latencies and transfer costs are read as milliseconds",
        scale.note,
        "parameter_bytes are the file's sizes: weights and buffers together",
        f"{NUM_MICROBATCHES} samples are ours, the file names no batch",
    )
    return Profile(
        device_type=device_type,
        tables=(CostTable(microbatch_size=1, layers=costs),),
        provenance=Provenance(method="imported", tool="device-placement JSON", notes=notes),
    )


def _cost(node: FoldedNode, milliseconds: Callable[[Node], float], runs_backward: bool) -> LayerCost:
    """Backward nodes take backward seconds, and forward ones where the layer runs no backward pass."""
    forward = sum(milliseconds(part) for part in node.all if not part.is_backward) / 1e3
    backward = sum(milliseconds(part) for part in node.all if part.is_backward) / 1e3
    return LayerCost(forward_s=forward + (0.0 if runs_backward else backward), backward_s=backward * runs_backward)


def _cluster(file: PlacementFile, scale: BusScale) -> Cluster:
    kinds = (
        (ACCELERATOR, DeviceKind.ACCELERATOR, int(file.accelerator_bytes), file.num_accelerators),
        (CPU, DeviceKind.CPU, MAX_BYTES, file.num_cpus),
    )
    devices = tuple(Device(id=f"{name}{i}", type=name) for name, _, _, count in kinds for i in range(count))
    return Cluster(
        name=f"{file.num_accelerators} accelerators, {file.num_cpus} CPUs",
        device_types=tuple(
            DeviceType(name=name, kind=kind, memory_bytes=memory, source="device-placement file")
            for name, kind, memory, count in kinds
            if count
        ),
        devices=devices,
        links=_links(devices, scale.bytes_per_ms * 1e3),
    )


def _links(devices: Sequence[Device], bandwidth: float) -> tuple[Link, ...]:
    """Every pair of devices has the whole bandwidth for itself, as the file's model has no contention."""
    if len(devices) == 1:
        return ()
    return tuple(Link(a=device.id, b=BUS, bandwidth_bytes_per_s=bandwidth, shared=False) for device in devices)


def _workload(folded: Folded) -> Training | Inference:
    if not folded.trains:
        return Inference(
            global_batch_size=NUM_MICROBATCHES,
            microbatch_size=1,
            weight_bytes_per_parameter=WEIGHT_BYTES_PER_PARAMETER,
            communication=Communication.BLOCKING,
        )
    return Training(
        global_batch_size=NUM_MICROBATCHES,
        microbatch_size=1,
        weight_bytes_per_parameter=WEIGHT_BYTES_PER_PARAMETER,
        gradient_bytes_per_parameter=0.0,
        optimizer_bytes_per_parameter=0.0,
        communication=Communication.BLOCKING,
    )


def _on_accelerator(node: FoldedNode) -> bool:
    return all(part.on_accelerator for part in node.all)


def _names(folded: Folded) -> dict[int, str]:
    """Node id -> layer id: the node's name, with its id where names are missing or repeated."""
    count = Counter(node.forward.name for node in folded.nodes)
    return {
        node.id: node.name if node.name and count[node.name] == 1 else f"{node.name}#{node.id}"
        for node in (folded_node.forward for folded_node in folded.nodes)
    }
