"""PipeDream's `graph.txt` (Narayanan et al. 2019, `profiler/` of its repository; DAPPLE's profiles are the same).

    node2 -- ReLU() -- forward_compute_time=3.1, backward_compute_time=6.2, activation_size=8e8, parameter_size=0.0
    \tnode2 -- node3

Times are milliseconds per minibatch, sizes bytes per minibatch (parameters: bytes of float32). `activation_size` may
be a list `[a; b; c]`, which PipeDream adds up. The file says neither how many samples a minibatch has nor which device
it was measured on: both are options, and by default a minibatch counts as one sample.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from planner.checks import MAX_BYTES, MAX_SECONDS
from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph
from planner.profile import CostTable, LayerCost, Profile, Provenance
from profiles.importers.base import IMPORTERS, UNNAMED_DEVICE, ImportOptions
from profiles.model import ProfiledModel

SEPARATOR = " -- "
TIMES = ("forward_compute_time", "backward_compute_time")
SIZES = ("activation_size", "parameter_size")
_FIRST_NODE = re.compile(rb"^\S+ -- .* -- .*forward_compute_time=", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]*)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_STAGE = " -- stage_id="
"""PipeDream's optimizer appends the stage that it chose; we choose our own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """One node line, in our units."""

    id: str
    op: str
    forward_s: float
    backward_s: float
    activation_bytes: int
    parameter_bytes: int


@IMPORTERS.register
class PipeDream:
    """Reads `graph.txt`."""

    name = "pipedream"

    def sniff(self, head: bytes) -> bool:
        """The first node line gives it away."""
        return _FIRST_NODE.search(head) is not None

    def read(self, text: str, options: ImportOptions) -> ProfiledModel:
        """Layers in file order; what a node keeps until its backward pass is its output."""
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        nodes = [_node(number, line) for number, line in lines if not line[0].isspace()]
        if not nodes:
            raise InputError("the text holds no node line: is it a PipeDream graph.txt?")
        sizes = {node.id: _per_sample(node.activation_bytes, options) for node in nodes}
        edges = tuple(_edge(number, line, sizes) for number, line in lines if line[0].isspace())
        layers = tuple(Layer(id=node.id, op=node.op, parameter_bytes=node.parameter_bytes) for node in nodes)
        return ProfiledModel(graph=LayerGraph(layers=layers, edges=edges), profiles=(_profile(nodes, options),))


def _profile(nodes: list[_Node], options: ImportOptions) -> Profile:
    costs = {
        node.id: LayerCost(forward_s=node.forward_s, backward_s=node.backward_s, activation_bytes=node.activation_bytes)
        for node in nodes
    }
    table = CostTable(microbatch_size=options.minibatch_size, layers=costs)
    notes = [f"times and sizes are those of a minibatch, counted as {options.minibatch_size} sample(s)"]
    if options.device_type is None:
        notes.append("the file does not name the device that it was measured on")
    return Profile(
        device_type=options.device_type or UNNAMED_DEVICE,
        dtype="float32",
        tables=(table,),
        provenance=Provenance(method="imported", tool="pipedream graph.txt", notes=tuple(notes)),
    )


def _node(number: int, line: str) -> _Node:
    name, separator, rest = line.partition(SEPARATOR)
    op, second, figures = rest.partition(_STAGE)[0].rpartition(SEPARATOR)
    if not separator or not second:
        raise InputError(f"line {number}: a node line is `id -- operator -- figures`, found {line[:60]!r}")
    values = dict(_FIELD.findall(figures))
    times = [_seconds(number, name, key, values) for key in TIMES]
    sizes = [_bytes(number, name, key, values) for key in SIZES]
    return _Node(
        id=name.strip(),
        op=op.strip(),
        forward_s=times[0],
        backward_s=times[1],
        activation_bytes=sizes[0],
        parameter_bytes=sizes[1],
    )


def _edge(number: int, line: str, sizes: dict[str, int]) -> Edge:
    source, separator, target = line.strip().partition(SEPARATOR)
    if not separator or not target:
        raise InputError(f"line {number}: an edge line is a tab and `id -- id`, found {line.strip()[:60]!r}")
    for end in (source, target):
        if end not in sizes:
            raise InputError(f"line {number}: the edge names {end[:60]!r}, which no node line defines")
    return Edge(source=source, target=target, bytes_per_sample=sizes[source])


def _seconds(number: int, name: str, key: str, values: dict[str, str]) -> float:
    """Milliseconds to seconds."""
    return _figure(number, name, key, _field(number, name, key, values), MAX_SECONDS * 1e3) / 1e3


def _bytes(number: int, name: str, key: str, values: dict[str, str]) -> int:
    """Whole bytes, rounded up; a list is added up."""
    text = _field(number, name, key, values)
    parts = text[1:-1].split(";") if text.startswith("[") else [text]
    return math.ceil(sum(_figure(number, name, key, part.strip(), MAX_BYTES) for part in parts))


def _field(number: int, name: str, key: str, values: dict[str, str]) -> str:
    if key not in values:
        raise InputError(f"line {number}: node {name!r} has no {key}: add it")
    return values[key]


def _figure(number: int, name: str, key: str, text: str, high: float) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 <= value <= high:
        raise InputError(f"line {number}: node {name!r}: {key} is {text[:40]!r}: it must be between 0 and {high:g}")
    return value


def _per_sample(num_bytes: int, options: ImportOptions) -> int:
    """Bytes of one sample, rounded up where the minibatch size does not divide."""
    if options.minibatch_size < 1:
        raise InputError(f"minibatch size is {options.minibatch_size}: it must be at least 1")
    return -(-num_bytes // options.minibatch_size)
