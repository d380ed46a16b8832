"""Selective recomputation: attention scores, their softmax and the product with the values (Korthikanti et al. 2022).

    scores = product(queries, keys)    ... scaling, masks, casts ...    softmax    ... casts ...    product(_, values)

Queries, keys, values and masks are kept, as without recomputation; what is made of them is made again in the backward
pass. Fused attention is one operator that keeps no scores: it is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from planner.runtime.split import StageModule

_aten = torch.ops.aten
SOFTMAX = {_aten.softmax.int, _aten._softmax.default, _aten._safe_softmax.default}
PRODUCTS = {_aten.matmul.default, _aten.bmm.default, _aten.baddbmm.default, _aten.einsum.default}
_ELEMENTS = (
    "add",
    "add_",
    "sub",
    "mul",
    "mul_",
    "div",
    "div_",
    "tanh",
    "where",
    "masked_fill",
    "masked_fill_",
    "maximum",
)
_CASTS = ("to", "_to_copy", "type_as", "dropout", "clone", "contiguous")
_SHAPES = ("view", "reshape", "_unsafe_view", "expand", "transpose", "permute", "unsqueeze", "squeeze", "slice")
BETWEEN = {getattr(_aten, name) for name in (*_ELEMENTS, *_CASTS, *_SHAPES)}
"""Operators that may stand between a product and the softmax; a walk stops at others."""


def recompute_cores(module: StageModule) -> None:
    """Have the attention cores of `module` recomputed in its backward pass. Changes it."""
    for number, node in enumerate([node for node in module.graph.nodes if node.target in SOFTMAX]):
        core = core_of(node)
        if core:
            _put_apart(module, core, f"attention_core_{number}")
    module.recompile()


def core_of(softmax: fx.Node) -> list[fx.Node]:
    """The operators of the core, in order; none where the softmax is not between two products, or others use it."""
    above = _towards_product(softmax, lambda node: node.all_input_nodes)
    below = _towards_product(softmax, lambda node: list(node.users))
    if not above or not below:
        return []
    members = above | below
    ordered = [node for node in softmax.graph.nodes if node in members]
    used = {user for node in ordered[:-1] for user in node.users}
    return ordered if used <= members else []


def _towards_product(node: fx.Node, nexts: Callable[[fx.Node], Sequence[fx.Node]]) -> set[fx.Node]:
    """All nodes on ways from `node` to the nearest products, both ends included; none where no way ends at one."""
    found: set[fx.Node] = set()
    for other in nexts(node):
        if other.target in PRODUCTS:
            found.add(other)
        elif other.op == "call_function" and getattr(other.target, "overloadpacket", None) in BETWEEN:
            found |= _towards_product(other, nexts)
    return found | {node} if found else found


def _put_apart(module: StageModule, core: Sequence[fx.Node], name: str) -> None:
    """The core becomes a submodule of its own."""
    inputs = list(dict.fromkeys(source for node in core for source in node.all_input_nodes if source not in core))
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in core:
        copies[node] = graph.node_copy(node, lambda old: copies[old])
    graph.output(copies[core[-1]])
    module.add_submodule(name, RecomputedCore(fx.GraphModule(nn.Module(), graph)))
    with module.graph.inserting_before(core[-1]):
        made = module.graph.call_module(name, tuple(inputs))
    core[-1].replace_all_uses_with(made)
    for node in reversed(core):
        module.graph.erase_node(node)


class RecomputedCore(nn.Module):
    """Keeps what the core reads, and computes it again."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, *read: torch.Tensor) -> torch.Tensor:
        """The product with the values."""
        made: torch.Tensor = checkpoint(self.core, *read, use_reentrant=False, preserve_rng_state=False)
        return made
