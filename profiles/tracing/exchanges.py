"""What context and expert parallelism exchange, and what generating text keeps, read off the operators.

- Fused attention reads keys and values: context parallelism passes them around, and a causal (or masked) one keeps them
  when text is generated. Repetitions of heads are looked through: only what is repeated counts.
- A grouped product reads the matrices of all experts and the rows that were routed to them. The first one of a module
  gets the rows from outside; those of the others are made by it.
- Attention of single products and experts run one by one are not recognised: their layers exchange nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import fx, nn

from profiles.tracing.collectives import WEIGHT_VIEWS, operator_name
from profiles.tracing.grouping import attribute

ATTENTION = "scaled_dot_product_attention"
GROUPED = {"_grouped_mm", "grouped_mm_fallback"}
REPEATS = {"expand", "reshape", "view", "unsqueeze", "slice", "clone", "contiguous"}
"""How transformers repeats the heads of keys and values: a view of them expanded and copied."""
KEY, VALUE, MASK, CAUSAL = 1, 2, 3, 5
"""Positions among the arguments of fused attention."""


@dataclass(slots=True)
class Exchange:
    """The exchanged bytes of one layer; see `planner.graph.Layer`."""

    context_bytes_per_sample: int = 0
    kv_bytes_per_token: int = 0
    expert_parameters: dict[int, int] = field(default_factory=dict)
    """Bytes of each parameter of the layer's experts, by its identity."""
    expert_dispatch_bytes_per_sample: int = 0
    num_experts: int = 0
    expert_rows_per_sample: int = 0

    @property
    def expert_parameter_bytes(self) -> int:
        """Bytes of all parameters of the experts."""
        return sum(self.expert_parameters.values())

    @property
    def expert_visits(self) -> float:
        """Rows of one sample that each expert gets when routing is even."""
        return self.expert_rows_per_sample / self.num_experts if self.num_experts else 0.0


def exchanges(module: fx.GraphModule, layer_of: dict[str, str], batch_size: int) -> dict[str, Exchange]:
    """Layer id -> what it exchanges. Layers that are missing exchange nothing."""
    found: dict[str, Exchange] = defaultdict(Exchange)
    routed: set[tuple[str, str]] = set()
    for node in module.graph.nodes:
        layer = layer_of.get(node.name)
        if layer is None:
            continue
        if operator_name(node) == ATTENTION:
            _attend(found[layer], node, batch_size)
        elif operator_name(node) in GROUPED:
            found[layer].expert_parameters |= {id(p): p.numel() * p.element_size() for p in _matrices(module, node)}
            if (layer, _path(node)) not in routed:
                routed.add((layer, _path(node)))
                _route(found[layer], node, batch_size)
    return found


def _route(exchange: Exchange, node: fx.Node, batch_size: int) -> None:
    """The first grouped product of a module: (rows, width) by (experts, width, other width)."""
    rows, matrices = node.all_input_nodes[:2]
    exchange.expert_dispatch_bytes_per_sample += _bytes(rows) // batch_size
    exchange.expert_rows_per_sample += rows.meta["val"].shape[0] // batch_size
    exchange.num_experts += matrices.meta["val"].shape[0]


def _attend(exchange: Exchange, node: fx.Node, batch_size: int) -> None:
    """One attention: its keys and values, per sample and per token."""
    keys, values = node.args[KEY], node.args[VALUE]
    assert isinstance(keys, fx.Node)
    assert isinstance(values, fx.Node)
    num_bytes = (_unrepeated_bytes(keys) + _unrepeated_bytes(values)) // batch_size
    exchange.context_bytes_per_sample += num_bytes
    if _argument(node, MASK, "attn_mask") is not None or _argument(node, CAUSAL, "is_causal"):
        exchange.kv_bytes_per_token += num_bytes // keys.meta["val"].shape[-2]


def _argument(node: fx.Node, position: int, name: str) -> object:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _unrepeated_bytes(node: fx.Node) -> int:
    """The fewest bytes on the way back through views and repetitions."""
    fewest = _bytes(node)
    while operator_name(node) in REPEATS:
        node = node.all_input_nodes[0]
        fewest = min(fewest, _bytes(node))
    return fewest


def _matrices(module: fx.GraphModule, node: fx.Node) -> Iterator[nn.Parameter]:
    """The parameters that a product reads, also through views of them."""
    for source in node.all_input_nodes:
        while source.op == "call_function" and source.all_input_nodes and operator_name(source) in WEIGHT_VIEWS:
            source = source.all_input_nodes[0]
        if source.op == "get_attr":
            value = attribute(module, source)
            if isinstance(value, nn.Parameter):
                yield value


def _path(node: fx.Node) -> str:
    """The innermost module that calls the operator."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _bytes(node: fx.Node) -> int:
    """Of the whole tensor, expanded dimensions included."""
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
