"""What a tensor-parallel group would all-reduce in one forward pass, read off the operators.

The rule is Megatron's (Shoeybi et al. 2019, section 3), followed along the data flow. A value is *whole* or *divided*
over the group. An operator with a weight matrix on a whole input is column-parallel: its output is divided. On a
divided input it is row-parallel: its output is all-reduced and whole again; these bytes are counted. An embedding
that looks up model inputs is divided by vocabulary and all-reduced. Normalisations and selections over the divided
dimension gather it (same volume). Everything else passes `divided` on. A transformer block so counts two reductions
(attention and MLP), the embedding one, the head none.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import fx, nn

from profiles.tracing.grouping import attribute

WEIGHT_OPERATORS = {"linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "conv1d", "conv2d", "conv3d", "_grouped_mm"}
GATHERING_OPERATORS = {"layer_norm", "group_norm", "rms_norm", "topk", "sort", "argmax", "cumsum"}
MIN_WEIGHT_DIMENSIONS = 2


def collective_bytes(module: fx.GraphModule, layer_of: dict[str, str], batch_size: int) -> dict[str, int]:
    """Layer id -> bytes per sample that its tensor-parallel group all-reduces in one forward pass."""
    total: dict[str, int] = defaultdict(int)
    from_data, divided = _depend_on_inputs(module), set[fx.Node]()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        division_in = any(source in divided for source in node.all_input_nodes)
        division_out, reduced = _follow(module, node, from_data, division_in)
        if division_out:
            divided.add(node)
        if reduced and node.name in layer_of:
            total[layer_of[node.name]] += _tensor_bytes(node) // batch_size
    return total


def _follow(module: fx.GraphModule, node: fx.Node, from_data: set[fx.Node], divided: bool) -> tuple[bool, bool]:
    """(is the output divided, is it the result of a collective)."""
    name = _packet_name(node)
    if name == "embedding" and node in from_data:
        return False, True
    if name in WEIGHT_OPERATORS and _has_weight(module, node):
        return not divided, divided
    if name in GATHERING_OPERATORS:
        return False, divided
    return divided, False


def _depend_on_inputs(module: fx.GraphModule) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder" or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _has_weight(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a parameter matrix is among the inputs, also through views of it (transposed, selected experts)."""
    return any(_is_weight(module, source) for source in node.all_input_nodes)


def _is_weight(module: fx.GraphModule, node: fx.Node) -> bool:
    while node.op == "call_function" and len(node.all_input_nodes) >= 1 and _packet_name(node) in VIEWS:
        node = node.all_input_nodes[0]
    if node.op != "get_attr":
        return False
    value = attribute(module, node)
    return isinstance(value, nn.Parameter) and value.dim() >= MIN_WEIGHT_DIMENSIONS


VIEWS = {"t", "transpose", "permute", "view", "reshape", "index", "index_select", "select", "slice", "to", "expand"}


def _packet_name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else ""


def _tensor_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))
