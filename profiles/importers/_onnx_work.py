"""What one ONNX operator does: FLOPs by its kind, bytes that it moves, tensors that its backward pass needs.

A product of m x k and k x n is 2 m k n FLOPs. Kinds that are not named here count no FLOPs: they move their inputs and
outputs through memory. Views move nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from planner.errors import InputError
from profiles.importers._onnx_model import OnnxGraph, Operator, Tensor

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Expand"})
KEEP_OUTPUT = frozenset(
    {"Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Exp", "Sqrt", "Relu", "Reciprocal", "Attention", "LSTM", "GRU", "RNN"}
)
KEEP_INPUT = frozenset({
    "LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization",
    "LRN", "LpNormalization", "Gelu", "Erf", "Log", "Pow", "Abs", "Clip", "Elu", "Celu", "Selu", "LeakyRelu",
    "HardSigmoid", "HardSwish", "Swish", "Mish", "Softplus", "Softsign", "Sin", "Cos", "MaxPool", "ReduceMax",
    "ReduceMin", "TopK",
})  # fmt: skip
FACTORS = frozenset({"Mul", "Div", "PRelu"})
LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})

Shapes = list[tuple[int, ...]]


def flops(graph: OnnxGraph, operator: Operator) -> int:
    """FLOPs of all samples, of the kinds that are products."""
    formula = _FORMULAS.get(operator.kind)
    if formula is None:
        return 0
    inputs: Shapes = [graph.tensor(operator, name).shape if name else () for name in operator.inputs]
    outputs: Shapes = [graph.tensor(operator, name).shape for name in operator.outputs]
    try:
        return formula(operator, inputs, outputs)
    except (IndexError, KeyError, ValueError, TypeError):
        raise InputError(
            f"node {operator.name[:80]!r} ({operator.kind}) has inputs of the shapes {str(inputs)[:200]}, which do not "
            "fit: export the model again",
            pointer="/graph/node",
        ) from None


def _matmul(operator: Operator, inputs: Shapes, outputs: Shapes) -> int:
    return 2 * math.prod(outputs[0]) * inputs[0][-1]


def _gemm(operator: Operator, inputs: Shapes, outputs: Shapes) -> int:
    return 2 * math.prod(outputs[0]) * inputs[0][0 if operator.attributes.get("transA") else 1]


def _convolution(weight: int) -> Callable[[Operator, Shapes, Shapes], int]:
    """Every output element is a product with a window of all input channels of its group."""

    def formula(operator: Operator, inputs: Shapes, outputs: Shapes) -> int:
        return 2 * math.prod(outputs[0]) * math.prod(inputs[weight][1:])

    return formula


def _transposed(operator: Operator, inputs: Shapes, outputs: Shapes) -> int:
    return 2 * math.prod(inputs[0]) * math.prod(inputs[1][1:])


def _recurrent(operator: Operator, inputs: Shapes, outputs: Shapes) -> int:
    """Per step and sample: input and hidden state times their matrices."""
    return 2 * inputs[0][0] * inputs[0][1] * (math.prod(inputs[1]) + math.prod(inputs[2]))


def _attention(operator: Operator, inputs: Shapes, outputs: Shapes) -> int:
    """Queries times keys, and weights times values: the whole square, also under a causal mask."""
    return 2 * inputs[1][-2] * (math.prod(inputs[0]) + math.prod(outputs[0]))


def _einsum(operator: Operator, inputs: Shapes, outputs: Shapes) -> int:
    """All indices of two or more operands; one operand alone is only moved."""
    equation = operator.attributes["equation"].decode().replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if len(terms) == 1:
        return 0
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=True):
        labels = re.sub(r"\.\.\.", "", term)
        before = term.find("...") if "..." in term else len(labels)
        spread = len(shape) - len(labels)
        names = [*labels[:before], *(f".{i}" for i in range(spread, 0, -1)), *labels[before:]]
        sizes |= {name: max(size, sizes.get(name, 1)) for name, size in zip(names, shape, strict=True)}
    return 2 * math.prod(sizes.values())


_FORMULAS: dict[str, Callable[[Operator, Shapes, Shapes], int]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _transposed,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _attention,
    "Einsum": _einsum,
}


def kept(operator: Operator, live: set[str], trained: set[str], floating: Callable[[str], bool]) -> list[str]:
    """Tensors that torch's backward pass of such an operator needs, among those that depend on the model's input.

    `trained` are the tensors that get a gradient though they do not depend on it: weights.
    """
    inputs = [name for name in operator.given if name in live]
    found: list[str] = []
    if operator.kind in _FORMULAS or operator.kind in KEEP_INPUT:
        found += inputs
    elif operator.kind in LOOKUPS:
        found += [name for name in inputs if not floating(name)]
    elif operator.kind in FACTORS:
        changing = [name for name in operator.given if name in live or name in trained]
        found += [name for name in inputs if len(changing) > 1 or operator.given.count(name) > 1]
    if operator.kind in KEEP_OUTPUT:
        found += operator.outputs[:1]
    return found


def moved(inputs: list[Tensor], outputs: list[Tensor]) -> tuple[int, int]:
    """Bytes of the forward pass (read inputs, write outputs) and the backward one (read both, write gradients)."""
    read, written = sum(t.num_bytes for t in inputs), sum(t.num_bytes for t in outputs)
    return read + written, written + 2 * read
