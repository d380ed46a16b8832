"""PipeEdge's scheduler inputs (Hu et al. 2022, `README_Scheduler.md` of its repository): inference on edge devices.

A folder with three YAML files, or one stream of their documents:

    models.yml        per layer memory in MB, and elements that it puts out per sample
    device_types.yml  memory in MB, port in Mbps, and per model seconds per layer for a microbatch of `batch_size`
    devices.yml       hosts per device type

MB and Mbps are 2^20 bytes and bits, as PipeEdge's own scheduler reads them, and a transfer runs at the slower of both
ports. The files say neither how many samples there are (we take 64 microbatches) nor what a layer's memory is made of
(all of it counts as weights, as theirs does). `ImportOptions.model` names the model where there are several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from planner.checks import MIN_BANDWIDTH_BYTES_PER_S
from planner.cluster import Cluster, Device, DeviceType, Link
from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph
from planner.profile import DTYPE_BYTES, CostTable, LayerCost, Profile, Provenance
from planner.workload import Inference
from profiles.importers._choice import one_of
from profiles.importers._pipeedge_files import (
    DEVICE_TYPES,
    DEVICES,
    MODELS,
    Kind,
    Model,
    PipeEdgeFiles,
    Times,
    read_files,
)
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.model import ProfiledModel

NETWORK = "network"
NUM_MICROBATCHES = 64
_MARKS = (
    re.compile(rb"^\s+bw_Mbps:", re.MULTILINE),
    re.compile(rb"^\s+parameters_in:", re.MULTILINE),
    re.compile(rb"\A(#.*\n)*([\w.-]+:( \[\])? *\n(- \S+\n)*)+\Z"),
)
_NOTES = (
    "MB and Mbps of the files are 2^20 bytes and bits, as PipeEdge's scheduler reads them, and its profiler wrote 10^6",
    "the memory of a layer is counted as weights: the files do not say what it is made of",
    f"the files name no number of samples: {NUM_MICROBATCHES} microbatches",
)


@IMPORTERS.register
class PipeEdge:
    """Reads the three YAML files, cluster and workload included."""

    name = "pipeedge"

    def sniff(self, head: bytes) -> bool:
        """The field names of models and device types; hosts are lists under plain keys and nothing else."""
        return not head.lstrip().startswith(b"{") and any(mark.search(head) for mark in _MARKS)

    def wants(self, path: str) -> bool:
        """The files' default names."""
        return path in (MODELS, DEVICE_TYPES, DEVICES)

    def read(self, text: str, options: ImportOptions) -> ProfiledModel:
        """A stream that holds the documents of all three files."""
        return self.read_files({"the text": text.encode(errors="replace")}, options)

    def read_files(self, files: Mapping[str, bytes], options: ImportOptions) -> ProfiledModel:
        """See the module."""
        found = read_files(files)
        _check_parts(found)
        model = found.models[one_of(_usable(found), options.model, "PipeEdge model")]
        kinds = _measured(found, model)
        times = {kind.name: _of_one_dtype(kind, model) for kind in kinds}
        dtype = next(iter(times.values()))[0].dtype
        largest = max(each.batch_size for found in times.values() for each in found)
        return ProfiledModel(
            graph=_graph(model, DTYPE_BYTES[dtype]),
            profiles=tuple(_profile(kind, times[kind.name], _dropped(found, kinds)) for kind in kinds),
            cluster=_cluster(found, kinds),
            workload=Inference(
                global_batch_size=largest * NUM_MICROBATCHES,
                microbatch_size=largest,
                weight_bytes_per_parameter=float(DTYPE_BYTES[dtype]),
            ),
        )


def _check_parts(files: PipeEdgeFiles) -> None:
    """All three files are there, and hosts are of known types."""
    for name, part in ((MODELS, files.models), (DEVICE_TYPES, files.kinds), (DEVICES, files.hosts)):
        if not part:
            raise InputError(f"there is no {name} of PipeEdge: give the folder that holds all three files")
    for kind, hosts in files.hosts.items():
        if hosts and kind not in files.kinds:
            raise InputError(f"{DEVICES}: device type {kind!r} is not in {DEVICE_TYPES}: add it or fix the name")


def _usable(files: PipeEdgeFiles) -> list[str]:
    """Models with layers and with times on a device type that has hosts."""
    return [
        name
        for name, model in files.models.items()
        if model.memory_bytes
        and any(kind.times.get(name) and files.hosts.get(kind.name) for kind in files.kinds.values())
    ]


def _measured(files: PipeEdgeFiles, model: Model) -> list[Kind]:
    """Device types that have hosts and times of the model."""
    found = [k for k in files.kinds.values() if files.hosts.get(k.name) and k.times.get(model.name)]
    for kind in found:
        for times in kind.times[model.name]:
            _check_times(times, kind, model)
        if kind.bandwidth_bytes_per_s < MIN_BANDWIDTH_BYTES_PER_S:
            raise InputError(f"{kind.at}: device type {kind.name!r} has hosts and a bw_Mbps of 0: give its bandwidth")
    return found


def _check_times(times: Times, kind: Kind, model: Model) -> None:
    if len(times.seconds) != len(model.memory_bytes):
        raise InputError(
            f"{times.at}: device type {kind.name!r} has {len(times.seconds)} times of model {model.name!r}, which has "
            f"{len(model.memory_bytes)} layers: give one per layer"
        )
    if times.dtype not in DTYPE_BYTES:
        raise InputError(f"{times.at}: dtype {times.dtype[:40]!r} is unknown: use one of {', '.join(DTYPE_BYTES)}")


def _of_one_dtype(kind: Kind, model: Model) -> list[Times]:
    """The entries in the dtype of the first one, the first one of each batch size, by batch size."""
    entries = kind.times[model.name]
    first = {each.batch_size: each for each in reversed(entries) if each.dtype == entries[0].dtype}
    return [first[size] for size in sorted(first)]


def _layer_id(number: int) -> str:
    return f"layer.{number}"


def _graph(model: Model, itemsize: int) -> LayerGraph:
    """A chain: layer i feeds layer i + 1 with all that it puts out."""
    layers = tuple(
        Layer(id=_layer_id(i), parameter_bytes=math.ceil(size)) for i, size in enumerate(model.memory_bytes, 1)
    )
    edges = tuple(
        Edge(source=_layer_id(i), target=_layer_id(i + 1), bytes_per_sample=elements * itemsize)
        for i, elements in enumerate(model.elements_out[:-1], 1)
    )
    return LayerGraph(layers=layers, edges=edges, name=model.name)


def _profile(kind: Kind, times: list[Times], dropped: tuple[str, ...]) -> Profile:
    tables = tuple(
        CostTable(
            microbatch_size=each.batch_size,
            layers={_layer_id(i): LayerCost(forward_s=seconds) for i, seconds in enumerate(each.seconds, 1)},
        )
        for each in times
    )
    provenance = Provenance(method="imported", tool="PipeEdge YAML", notes=(*_NOTES, *dropped))
    return Profile(device_type=kind.name, dtype=times[0].dtype, tables=tables, provenance=provenance)


def _dropped(files: PipeEdgeFiles, kinds: list[Kind]) -> tuple[str, ...]:
    left = sorted(files.kinds.keys() - {kind.name for kind in kinds})
    return (f"left out, without hosts or times of the model: {', '.join(left)}",) if left else ()


def _cluster(files: PipeEdgeFiles, kinds: list[Kind]) -> Cluster:
    """Hosts around one network, each with the port of its type."""
    hosts = [(host, kind) for kind in kinds for host in files.hosts[kind.name]]
    return Cluster(
        name=f"{len(hosts)} hosts",
        device_types=tuple(
            DeviceType(name=kind.name, memory_bytes=int(kind.memory_bytes), source="PipeEdge YAML") for kind in kinds
        ),
        devices=tuple(Device(id=host, type=kind.name) for host, kind in hosts),
        links=tuple(
            Link(a=host, b=NETWORK, bandwidth_bytes_per_s=kind.bandwidth_bytes_per_s, shared=False)
            for host, kind in (hosts if len(hosts) > 1 else ())
        ),
    )
