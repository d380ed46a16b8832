"""ONNX models (`onnx` package, extra `onnx`): a graph of operators folded into layers, with FLOPs and bytes.

Shapes come from onnx's own inference. The first open dimension of an input is the batch, others are the sequence length
(`--sequence-length`). How operators become layers: `profiles.importers._onnx_layers`; what they cost:
`profiles.importers._onnx_work`. It becomes a `ModelRecord`, which is priced for any device.

ONNX describes inference. For training we take what torch does for the same operators: a product costs twice its FLOPs
backwards, kept are the tensors that its gradients need. Only the command line reads it (`onnx` parses untrusted bytes
in C++), and external data is never opened: shapes are in the model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.profile import Provenance
from profiles.importers._onnx_layers import Group, fold
from profiles.importers._onnx_model import OnnxGraph, Operator, Tensor, check_size, read_onnx
from profiles.importers._onnx_work import VIEWS, kept, moved
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.model import Grain, LayerWork, ModelRecord

BACKWARD_FLOPS = 2
"""Per FLOP of a product: one product for each of its two factors."""
DTYPES = {"FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT8": "int8"}
IR_VERSION_FIELD = 0x08
MAX_IR_VERSION = 40
NEXT_FIELDS = frozenset(b"\x12\x1a\x22\x28\x32\x3a\x42")
"""Tags of the fields that can follow the version in a serialised model."""
MAX_KINDS = 12


@IMPORTERS.register
class Onnx:
    """Reads `.onnx` files."""

    name = "onnx"

    def sniff(self, head: bytes) -> bool:
        """A serialised model begins with its format's version."""
        return len(head) > 2 and head[0] == IR_VERSION_FIELD and 0 < head[1] < MAX_IR_VERSION and head[2] in NEXT_FIELDS

    def wants(self, path: str) -> bool:
        """One `.onnx` file in the folder."""
        return path.endswith(".onnx") and "/" not in path

    def read(self, text: str, options: ImportOptions) -> ModelRecord:
        """Refused: a model is no text."""
        raise InputError("an ONNX model is no text: give the .onnx file to the command line")

    def read_files(self, files: Mapping[str, bytes], options: ImportOptions) -> ModelRecord:
        """See the module."""
        if len(files) != 1:
            raise InputError(f"there are {len(files)} .onnx files: give the one that is meant")
        ((file, content),) = files.items()
        if options.sequence_length is not None and options.sequence_length < 1:
            raise InputError(f"sequence length is {options.sequence_length}: it must be at least 1")
        graph = read_onnx(content, file, options.sequence_length)
        return _Record(graph, options).record(file.removesuffix(".onnx"))


class _Record:
    """One graph on its way to a record."""

    def __init__(self, graph: OnnxGraph, options: ImportOptions) -> None:
        self._graph, self._options = graph, options
        made = {name for operator in graph.operators for name in operator.outputs}
        inputs = [name for name in graph.tensors if name not in made and name not in graph.weights]
        self._folded = fold(graph, inputs, options.grain is Grain.OPERATOR)
        self._ids = _ids(self._folded.groups)
        self._held: set[str] = set()

    def record(self, name: str) -> ModelRecord:
        """The whole record."""
        groups = self._folded.groups
        if not groups:
            raise InputError("no operator depends on an input of the model: export it with its inputs")
        layers = tuple(self._layer(number, group) for number, group in enumerate(groups))
        graph = LayerGraph(layers=layers, edges=tuple(self._edges()), tied=tuple(self._tied()), name=self._graph.name)
        return ModelRecord(
            name=self._graph.name or name,
            dtype=self._dtype(),
            sequence_length=self._options.sequence_length,
            graph=graph,
            work={self._ids[number]: self._work(group) for number, group in enumerate(groups)},
            provenance=Provenance(method="imported", tool="ONNX", notes=tuple(self._notes())),
        )

    def _layer(self, number: int, group: Group) -> Layer:
        kinds = [operator.kind for operator in group.operators]
        more = f"+{len(kinds) - MAX_KINDS} more" if len(kinds) > MAX_KINDS else ""
        return Layer(
            id=self._ids[number],
            op="+".join(kinds[:MAX_KINDS]) + more,
            parameter_bytes=sum(self._weight(name).num_bytes for name in group.weights),
        )

    def _weight(self, name: str) -> Tensor:
        return check_size(self._graph.weights[name], name)

    def _per_sample(self, count: int) -> int:
        return -(-count // self._graph.batch)

    def _edges(self) -> Iterator[Edge]:
        """Each tensor once for every layer that reads it; views are the tensors that they show."""
        folded, seen = self._folded, set[tuple[str, int]]()
        for number, group in enumerate(folded.groups):
            for operator in group.operators:
                for name in operator.given:
                    source = folded.maker.get(name)
                    tensor = self._sent(name)
                    if source in (None, number) or (tensor, number) in seen:
                        continue
                    assert source is not None
                    seen.add((tensor, number))
                    size = check_size(self._graph.tensor(operator, tensor), tensor)
                    yield Edge(
                        source=self._ids[source],
                        target=self._ids[number],
                        tensor=tensor,
                        bytes_per_sample=self._per_sample(size.num_bytes),
                        has_gradient=size.is_float,
                    )

    def _sent(self, name: str) -> str:
        """The tensor that a view shows, where the same layer makes both."""
        shown = self._folded.storage(name)
        maker = self._folded.maker
        return shown if maker.get(shown) == maker.get(name) else name

    def _tied(self) -> Iterator[TiedParameters]:
        readers: dict[str, list[int]] = defaultdict(list)
        for number, group in enumerate(self._folded.groups):
            for name in group.weights:
                readers[name].append(number)
        sets: dict[tuple[int, ...], int] = defaultdict(int)
        for name, numbers in readers.items():
            if len(numbers) > 1:
                sets[tuple(numbers)] += self._weight(name).num_bytes
        for members, count in sets.items():
            yield TiedParameters(layers=tuple(self._ids[number] for number in members), parameter_bytes=count)

    def _work(self, group: Group) -> LayerWork:
        forward_moved = backward_moved = largest = 0
        for operator, count in zip(group.operators, group.flops, strict=True):
            outputs = [self._size(operator, name) for name in operator.outputs]
            largest = max([largest, *(tensor.num_bytes for tensor in outputs)])
            if not count and operator.kind not in VIEWS:
                inputs = [self._size(operator, name) for name in operator.given if name in self._folded.live]
                forward, backward = moved(inputs, outputs)
                forward_moved, backward_moved = forward_moved + forward, backward_moved + backward
        flops, batch = sum(group.flops) / self._graph.batch, self._graph.batch
        if flops > MAX_FLOPS:
            raise InputError(f"layer {group.operators[0].name[:80]!r} has {flops:g} FLOPs (limit {MAX_FLOPS:g})")
        whole = [self._weight(name).num_bytes for name, is_whole in group.weights.items() if is_whole]
        return LayerWork(
            forward_flops=flops,
            backward_flops=BACKWARD_FLOPS * flops,
            forward_moved_bytes=forward_moved / batch,
            backward_moved_bytes=backward_moved / batch,
            weight_bytes=sum(whole),
            activation_bytes=self._per_sample(self._kept_bytes(group)),
            workspace_bytes=self._per_sample(largest),
            gradient_workspace_bytes=max((self._weight(name).num_bytes for name in group.weights), default=0),
        )

    def _kept_bytes(self, group: Group) -> int:
        """Tensors that the layer's gradients need and no earlier layer keeps; views count as what they show."""
        total = 0
        for operator in group.operators:
            folded = self._folded
            names = kept(operator, folded.live, folded.trained, lambda name: self._is_float(name))
            for name in map(folded.storage, names):
                if name not in self._held:
                    self._held.add(name)
                    total += self._size(operator, name).num_bytes
        return total

    def _is_float(self, name: str) -> bool:
        tensor = self._graph.tensors.get(name)
        return tensor is None or tensor.is_float

    def _size(self, operator: Operator, name: str) -> Tensor:
        return check_size(self._graph.tensor(operator, name), name)

    def _dtype(self) -> str:
        """That of most bytes of the parameters."""
        counts: dict[str, int] = defaultdict(int)
        for name in {name for group in self._folded.groups for name in group.weights}:
            weight = self._weight(name)
            counts[DTYPES.get(weight.type, "float32")] += weight.num_bytes
        return max(counts, key=lambda dtype: (counts[dtype], dtype), default="float32")

    def _notes(self) -> Iterator[str]:
        yield f"{len(self._graph.operators)} operators in {len(self._folded.groups)} layers; shapes by onnx"
        yield "an inference graph: backward work and kept tensors are those of torch for the same operators"
        if self._graph.batch > 1:
            yield f"the model is for {self._graph.batch} samples at once: figures are divided by that"
        if self._options.sequence_length is None:
            yield "no sequence length: the backward pass is not split"
        types = {self._graph.weights[name].type for group in self._folded.groups for name in group.weights}
        odd = sorted(types - DTYPES.keys())
        if odd:
            yield f"parameters of the types {', '.join(odd)} count with their own bytes"


MAX_FLOPS = math.ldexp(1.0, 80)


def _ids(groups: list[Group]) -> list[str]:
    """Per layer the name of its first product, else of its first operator; numbered where names are repeated."""
    found: list[str] = []
    for group in groups:
        first = next((o for o, count in zip(group.operators, group.flops, strict=True) if count), group.operators[0])
        found.append(first.name)
    repeated = {name for name in found if found.count(name) > 1} if len(set(found)) < len(found) else set()
    return [f"{name}#{number}" if name in repeated else name for number, name in enumerate(found)]
