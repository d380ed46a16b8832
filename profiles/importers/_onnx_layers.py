"""Operators of an ONNX graph folded into layers.

What does not depend on the model's inputs (constants, transposed weights, shapes) is computed once and belongs to no
layer. Of the others, every product (an operator with FLOPs) and every lookup in a weight begins a layer, and so does an
operator that reads from several layers or from none; each other one joins the one layer that it reads from. All that a
joining operator reads lies in its layer, so the layers have no cycle. At the grain `operator` each operator is a layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from profiles.importers._onnx_model import OnnxGraph, Operator
from profiles.importers._onnx_work import LOOKUPS, VIEWS, flops

SHAPES = frozenset({"Shape", "Size"})
NOT_TRAINED = frozenset({"INT64", "INT32", "BOOL"})


@dataclass(slots=True, kw_only=True)
class Group:
    """One layer: its operators, their FLOPs, and the weights that they read."""

    operators: list[Operator] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    weights: dict[str, bool] = field(default_factory=dict)
    """Name -> whether it is read whole (not looked up)."""


@dataclass(slots=True, kw_only=True)
class Folded:
    """All layers; which one makes a tensor, which tensor a view shows, which depend on the inputs or on weights."""

    groups: list[Group] = field(default_factory=list)
    maker: dict[str, int] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)

    def storage(self, name: str) -> str:
        """The tensor whose memory this one shows."""
        return self.shown.get(name, name)


def fold(graph: OnnxGraph, inputs: Iterable[str], by_operator: bool) -> Folded:
    """See the module. `inputs` are the tensors that are given to the model."""
    return _Folding(graph, inputs, by_operator).result


class _Folding:
    def __init__(self, graph: OnnxGraph, inputs: Iterable[str], by_operator: bool) -> None:
        self._graph, self._by_operator = graph, by_operator
        self._weights_of = {name: {name} if _is_parameter(graph, name) else set[str]() for name in graph.weights}
        trained = {name for name, found in self._weights_of.items() if found}
        self.result = Folded(live=set(inputs), trained=trained)
        for operator in graph.operators:
            self._add(operator)

    def _add(self, operator: Operator) -> None:
        folded = self.result
        if operator.kind in SHAPES or not any(name in folded.live for name in operator.given):
            self._add_static(operator)
            return
        count = flops(self._graph, operator)
        number = self._group_of(operator, count)
        group = folded.groups[number]
        group.operators.append(operator)
        group.flops.append(count)
        for position, name in enumerate(operator.inputs):
            for weight in sorted(self._weights_of.get(name, ())):
                looked_up = operator.kind in LOOKUPS and position == 0
                group.weights[weight] = group.weights.get(weight, False) or not looked_up
        for name in operator.outputs:
            folded.live.add(name)
            folded.maker[name] = number
        if operator.kind in VIEWS and operator.inputs[0] in folded.maker:
            folded.shown[operator.outputs[0]] = folded.storage(operator.inputs[0])

    def _add_static(self, operator: Operator) -> None:
        """What it makes is as good as the weights that it reads. Shapes of tensors are numbers, whatever is in them."""
        of_inputs = set[str]().union(*(self._weights_of.get(name, ()) for name in operator.given))
        for name in operator.outputs:
            found = self._weights_of.get(name, set[str]()) | (of_inputs if operator.kind not in SHAPES else set())
            self._weights_of[name] = found
            if found:
                self.result.trained.add(name)

    def _group_of(self, operator: Operator, count: int) -> int:
        """The layer that the operator joins, or a new one."""
        folded = self.result
        sources = {folded.maker[name] for name in operator.given if name in folded.maker}
        looks_up = operator.kind in LOOKUPS and bool(self._weights_of.get(operator.inputs[0]))
        if self._by_operator or count or looks_up or len(sources) != 1:
            folded.groups.append(Group())
            return len(folded.groups) - 1
        return sources.pop()


def _is_parameter(graph: OnnxGraph, name: str) -> bool:
    """Floats and quantised numbers of more than one element; the rest are shapes, indices and scales of formulas."""
    weight = graph.weights[name]
    return weight.type not in NOT_TRAINED and weight.num_elements > 1
