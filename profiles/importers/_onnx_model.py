"""An ONNX model as plain values: operators, shapes of all tensors, weights without their data (extra `onnx`).

Open dimensions are closed first: the first one of an input is the batch (1 sample), every other one is the sequence
length that the caller gives. Then onnx infers the shapes of what lies between. External data is never opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from planner.checks import MAX_BYTES, MAX_COUNT
from planner.errors import InputError

MAX_OPERATORS = 200_000
SMALL = 4096
"""Constants of up to this many elements keep their values, since they can be shapes; larger ones are only shapes."""
MIN_ONNX = (1, 21)
"""Older versions have known holes in their parsers."""
BYTES = {
    "FLOAT": 4.0, "DOUBLE": 8.0, "FLOAT16": 2.0, "BFLOAT16": 2.0, "COMPLEX64": 8.0, "BOOL": 1.0,
    "INT8": 1.0, "INT16": 2.0, "INT32": 4.0, "INT64": 8.0, "UINT8": 1.0, "UINT16": 2.0, "UINT32": 4.0, "UINT64": 8.0,
    "INT4": 0.5, "UINT4": 0.5, "FLOAT4E2M1": 0.5, "FLOAT8E4M3FN": 1.0, "FLOAT8E4M3FNUZ": 1.0, "FLOAT8E5M2": 1.0,
    "FLOAT8E5M2FNUZ": 1.0,
}  # fmt: skip
"""Bytes of one element by onnx's name of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor's shape and type, as onnx calls it."""

    shape: tuple[int, ...]
    type: str

    @property
    def num_elements(self) -> int:
        """All elements, of all samples."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Their bytes, rounded up."""
        return math.ceil(self.num_elements * BYTES[self.type])

    @property
    def is_float(self) -> bool:
        """Whether gradients can flow through it."""
        return "FLOAT" in self.type or self.type == "DOUBLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node: its inputs ("" where one is left out), outputs, and attributes that are numbers or text."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs that are there."""
        return tuple(name for name in self.inputs if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """Operators in topological order; `weights` are initialisers and constants; `batch` samples go in at once."""

    name: str
    operators: tuple[Operator, ...]
    tensors: dict[str, Tensor]
    weights: dict[str, Tensor]
    batch: int

    def tensor(self, operator: Operator, name: str) -> Tensor:
        """Shape and type of a tensor at an operator; InputError where onnx could not infer them."""
        if name not in self.tensors:
            raise InputError(
                f"node {operator.name!r} ({operator.kind}): the shape of {name[:80]!r} cannot be inferred: export the "
                "model with fixed shapes, or without operators that onnx does not know",
                pointer="/graph/node",
            )
        return self.tensors[name]


def read_onnx(content: bytes, file: str, sequence_length: int | None) -> OnnxGraph:
    """The graph in the bytes of a model; InputError that names what is wrong in the file."""
    onnx = _onnx()
    model = _parsed(onnx, content, file)
    graph = model.graph
    if not graph.node:
        raise InputError(f"{file} holds no operators: is it an ONNX model?")
    if len(graph.node) > MAX_OPERATORS:
        raise InputError(f"{file} has {len(graph.node)} operators (limit {MAX_OPERATORS}): give a smaller model")
    _refuse(graph)
    weights = dict(_weights(onnx, graph))
    _check_order(graph, weights)
    batch = _close(onnx, graph, weights, sequence_length)
    inferred = _inferred(onnx, model, file)
    infos = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    return OnnxGraph(
        name=graph.name,
        operators=tuple(_operator(onnx, number, node) for number, node in enumerate(graph.node)),
        tensors=dict(_tensors(onnx, infos)) | weights,
        weights=weights,
        batch=batch,
    )


def _onnx() -> Any:
    try:
        import onnx
        import onnx.inliner
        import onnx.shape_inference
    except ImportError:
        raise InputError('reading ONNX needs onnx, which is not installed: pip install "pipeplan[onnx]"') from None
    version = tuple(int(part) for part in onnx.__version__.split(".")[:2])
    if version < MIN_ONNX:
        raise InputError(f"onnx {onnx.__version__} is too old: at least {'.'.join(map(str, MIN_ONNX))} is needed")
    return onnx


def _parsed(onnx: Any, content: bytes, file: str) -> Any:
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(content)
        return onnx.inliner.inline_local_functions(model) if model.functions else model
    except (DecodeError, ValueError, RuntimeError) as fault:
        raise InputError(f"{file} is no whole ONNX model ({str(fault)[:200]}): export it again") from None


def _refuse(graph: Any) -> None:
    """Parts of ONNX that have no fixed layers."""
    if graph.sparse_initializer:
        raise InputError("sparse initialisers are not read: export the model with dense ones")
    for node in graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise InputError(
                f"node {node.name[:80]!r} ({node.op_type}) holds a graph of its own (a loop or a branch): export the "
                "model for one path, without control flow",
                pointer="/graph/node",
            )


def _weights(onnx: Any, graph: Any) -> Iterator[tuple[str, Tensor]]:
    """Initialisers and constants by name; data of the large ones is dropped."""
    found = [(each.name, each) for each in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            found += [(node.output[0], each.t) for each in node.attribute if each.HasField("t")]
    for name, tensor in found:
        shape = tuple(_dimension(name, size) for size in tensor.dims)
        yield name, Tensor(shape=shape, type=_type(onnx, name, tensor.data_type))
        if math.prod(shape) > SMALL:
            for data in ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data"):
                tensor.ClearField(data)


def _check_order(graph: Any, weights: dict[str, Tensor]) -> None:
    """Every tensor is made once, before it is read: so there is no cycle."""
    known = {info.name for info in graph.input} | weights.keys()
    for number, node in enumerate(graph.node):
        what = f"node {(node.name or f'{node.op_type}.{number}')[:80]!r} ({node.op_type})"
        for name in node.input:
            if name and name not in known:
                raise InputError(
                    f"{what} reads {name[:80]!r}, which no input, initialiser or node before it gives: a missing edge "
                    "or a cycle; export the model again",
                    pointer=f"/graph/node/{number}",
                )
        for name in node.output:
            if name and name in known and node.op_type != "Constant":
                raise InputError(f"{what} makes {name[:80]!r} again: every tensor is made once", pointer="/graph/node")
            known.add(name)


def _close(onnx: Any, graph: Any, weights: dict[str, Tensor], sequence_length: int | None) -> int:
    """Give all inputs fixed shapes; returns the number of samples in them."""
    batch = None
    for info in graph.input:
        if info.name in weights or not info.type.HasField("tensor_type"):
            continue
        dimensions = info.type.tensor_type.shape.dim
        for number, dimension in enumerate(dimensions):
            if not dimension.HasField("dim_value"):
                dimension.dim_value = 1 if number == 0 else _length(info.name, dimension.dim_param, sequence_length)
            _dimension(info.name, dimension.dim_value)
        if batch is None and len(dimensions):
            batch = dimensions[0].dim_value
    graph.ClearField("value_info")
    for info in graph.output:
        info.type.tensor_type.ClearField("shape")
    return max(1, batch or 1)


def _length(name: str, word: str, sequence_length: int | None) -> int:
    if sequence_length is None:
        raise InputError(
            f"input {name[:80]!r} leaves its dimension {word[:80]!r} open: say with --sequence-length how long it is",
            pointer="/graph/input",
        )
    return sequence_length


def _inferred(onnx: Any, model: Any, file: str) -> Any:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError) as fault:
        raise InputError(f"{file}: onnx cannot infer the shapes ({str(fault)[:200]}): export it again") from None


def _tensors(onnx: Any, infos: Iterable[Any]) -> Iterator[tuple[str, Tensor]]:
    """Those with fixed shapes."""
    for info in infos:
        kind = info.type.tensor_type
        shaped = info.type.HasField("tensor_type") and kind.HasField("shape")
        if shaped and all(dimension.HasField("dim_value") for dimension in kind.shape.dim):
            shape = tuple(_dimension(info.name, each.dim_value) for each in kind.shape.dim)
            yield info.name, Tensor(shape=shape, type=_type(onnx, info.name, kind.elem_type))


def _dimension(name: str, size: int) -> int:
    if not 0 <= size <= MAX_COUNT:
        raise InputError(f"tensor {name[:80]!r} has a dimension of {size}: it must be between 0 and {MAX_COUNT}")
    return int(size)


def _type(onnx: Any, name: str, number: int) -> str:
    known = {value: word for word, value in onnx.TensorProto.DataType.items()}
    word = known.get(number, str(number))
    if word not in BYTES:
        raise InputError(
            f"tensor {name[:80]!r} has the type {word}, which has no fixed size: leave it out of the model"
        )
    return str(word)


def _operator(onnx: Any, number: int, node: Any) -> Operator:
    kinds = onnx.AttributeProto
    plain = (kinds.FLOAT, kinds.INT, kinds.STRING, kinds.FLOATS, kinds.INTS)
    return Operator(
        name=node.name or f"{node.op_type}.{number}",
        kind=node.op_type,
        inputs=tuple(node.input),
        outputs=tuple(name for name in node.output if name),
        attributes={each.name: onnx.helper.get_attribute_value(each) for each in node.attribute if each.type in plain},
    )


def check_size(tensor: Tensor, name: str) -> Tensor:
    """The tensor, if its bytes are within our limits."""
    if tensor.num_bytes > MAX_BYTES:
        raise InputError(f"tensor {name[:80]!r} has {tensor.num_bytes} bytes (limit {MAX_BYTES}): its shape is wrong")
    return tensor
