"""What a tensor-parallel group would all-reduce in one forward pass, read off the operators.

The rule is Megatron's (Shoeybi et al. 2019, section 3), followed along the data flow. Every value is *whole* (each
member has it), *divided* over the members, or *partial* (each member holds a summand).

- A product with a weight matrix makes a whole input divided (column-parallel) and a divided one partial
  (row-parallel). Products of raw data (patch embeddings, stems) are copied and whole; so are routers.
- An embedding of model inputs is divided by vocabulary: partial.
- Sums of partial values and their products with whole ones stay partial. Where a partial value meets anything else it
  is all-reduced, also where it leaves its layer: its bytes are counted for that layer, and it is whole from there on.
- A norm over a divided value gathers it: counted too. Everything else passes its inputs' state on.

A transformer block so counts two reductions (attention, MLP; one if both are added before), an embedding one, a head
none.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum, auto
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn

from profiles.tracing.grouping import attribute, varying_nodes

WEIGHT_OPERATORS = {
    "linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "conv1d", "conv2d", "conv3d", "_grouped_mm",
    "grouped_mm_fallback",
}  # fmt: skip
NORMS = {"layer_norm", "group_norm", "rms_norm"}
SELECTIONS = {"topk", "sort", "argmax"}
"""Routers: every member computes them whole."""
LINEAR_OPERATORS = {
    "add", "sub", "mul", "div", "neg", "sum", "to", "clone", "contiguous", "dropout", "alias", "view", "reshape",
    "transpose", "permute", "unsqueeze", "squeeze", "expand", "slice", "select", "index", "index_select", "index_add",
    "scatter_add", "cat", "getitem", "flatten", "add_", "mul_",
}  # fmt: skip
SUMS = {"add", "sub", "add_"}
WEIGHT_VIEWS = {"t", "transpose", "permute", "view", "reshape", "index", "index_select", "select", "slice", "to"}
MIN_WEIGHT_DIMENSIONS = 2


_DIVIDED: WeakKeyDictionary[fx.GraphModule, tuple[dict[str, str], frozenset[str]]] = WeakKeyDictionary()


class State(Enum):
    """How a tensor-parallel group holds a value."""

    WHOLE = auto()
    DIVIDED = auto()
    PARTIAL = auto()


def collective_bytes(module: fx.GraphModule, layer_of: dict[str, str], batch_size: int) -> dict[str, int]:
    """Layer id -> bytes per sample that its tensor-parallel group all-reduces in one forward pass."""
    return _Follower(module, layer_of, batch_size).run()


def divided_nodes(module: fx.GraphModule, layer_of: dict[str, str]) -> frozenset[str]:
    """Names of the operators whose results a tensor-parallel group divides; all others every member has whole.

    Followed once per trace, however often it is asked for (layer by layer).
    """
    before, found = _DIVIDED.get(module, ({}, frozenset()))
    if before is not layer_of:
        follower = _Follower(module, layer_of, 1)
        follower.run()
        found = frozenset(node.name for node, state in follower.states.items() if state is State.DIVIDED)
        _DIVIDED[module] = (layer_of, found)
    return found


class _Follower:
    def __init__(self, module: fx.GraphModule, layer_of: dict[str, str], batch_size: int) -> None:
        self._module, self._layer_of, self._batch_size = module, layer_of, batch_size
        self.states: dict[fx.Node, State] = defaultdict(lambda: State.WHOLE)
        self._total: dict[str, int] = defaultdict(int)
        self._from_data = _reached(module, {n for n in module.graph.nodes if n.op == "placeholder"})
        parameters = {n for n in varying_nodes(module) if n.op == "get_attr"}
        self._from_parameters = _reached(module, parameters)

    def run(self) -> dict[str, int]:
        for node in self._module.graph.nodes:
            if node.op == "call_function":
                self.states[node] = self._follow(node)
                if self._leaves_layer(node):
                    self._reduce(node)
        for node in self._module.graph.output_node().all_input_nodes:
            self._reduce(node)
        return self._total

    def _follow(self, node: fx.Node) -> State:
        name = operator_name(node)
        if name == "embedding" and node in self._from_data:
            return State.PARTIAL
        if name in WEIGHT_OPERATORS and _has_weight(self._module, node):
            return self._product(node)
        if name in LINEAR_OPERATORS:
            return self._linear(node, name)
        for source in node.all_input_nodes:
            self._reduce(source)
        divided = self._any(node, State.DIVIDED)
        if name in NORMS and divided:
            self._count(node)
        return State.DIVIDED if divided and name not in NORMS | SELECTIONS else State.WHOLE

    def _product(self, node: fx.Node) -> State:
        for source in node.all_input_nodes:
            self._reduce(source)
        if self._any(node, State.DIVIDED):
            return State.PARTIAL
        learned = any(source in self._from_parameters for source in node.all_input_nodes if source in self._from_data)
        return State.DIVIDED if learned else State.WHOLE

    def _linear(self, node: fx.Node, name: str) -> State:
        """Partial values stay so, unless a sum joins them with a value that is not partial."""
        sources = node.all_input_nodes
        partial = [source for source in sources if self.states[source] is State.PARTIAL]
        joined = name in SUMS and len(partial) < len(sources)
        if partial and (joined or self._any(node, State.DIVIDED)):
            for source in partial:
                self._reduce(source)
            partial = []
        if partial:
            return State.PARTIAL
        return State.DIVIDED if self._any(node, State.DIVIDED) else State.WHOLE

    def _leaves_layer(self, node: fx.Node) -> bool:
        """Tensors are whole between layers, where a stage may end."""
        home = self._layer_of.get(node.name)
        return any(self._layer_of.get(user.name) != home for user in node.users)

    def _any(self, node: fx.Node, state: State) -> bool:
        return any(self.states[source] is state for source in node.all_input_nodes)

    def _reduce(self, node: fx.Node) -> None:
        if self.states[node] is State.PARTIAL:
            self._count(node)
            self.states[node] = State.WHOLE

    def _count(self, node: fx.Node) -> None:
        if node.name in self._layer_of:
            self._total[self._layer_of[node.name]] += _tensor_bytes(node) // self._batch_size


def operator_name(node: fx.Node) -> str:
    """The operator without namespace and overload: `linear`, `add`, `getitem`."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", ""))


def _reached(module: fx.GraphModule, starts: set[fx.Node]) -> set[fx.Node]:
    found = set(starts)
    for node in module.graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _has_weight(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a parameter matrix is among the inputs, also through views of it (transposed, selected experts)."""
    return any(_is_weight(module, source) for source in node.all_input_nodes)


def _is_weight(module: fx.GraphModule, node: fx.Node) -> bool:
    while node.op == "call_function" and node.all_input_nodes and operator_name(node) in WEIGHT_VIEWS:
        node = node.all_input_nodes[0]
    if node.op != "get_attr":
        return False
    value = attribute(module, node)
    return isinstance(value, nn.Parameter) and value.dim() >= MIN_WEIGHT_DIMENSIONS


def _tensor_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
