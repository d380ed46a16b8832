"""In-place operators made out of place, so that a layer never changes a tensor that another one keeps."""

from __future__ import annotations

import torch
from torch import fx

from profiles.tracing.grouping import is_view


def make_out_of_place(module: fx.GraphModule) -> None:
    """Replaces `x.add_(y)` by `x.add(y)` and the like, wherever the result is the same.

    The trace reads a changed tensor under the name of the operator that changed it; what is read under the old name
    must come before. Left alone: operators on buffers, on views and on tensors with views (others may see the change),
    and those without a twin of the same arguments.
    """
    order = {node: number for number, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        twin = _twin(node)
        if twin is not None and _is_private(node.args[0], node, order):
            node.target = twin
    module.recompile()


def _twin(node: fx.Node) -> object | None:
    """The operator without the underscore, where it takes the same arguments."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or not schema.name.endswith("_"):
        return None
    packet = node.target.overloadpacket  # type: ignore[union-attr]
    family = getattr(torch.ops, node.target.namespace)  # type: ignore[union-attr]
    other = getattr(family, packet.__name__.removesuffix("_"), None)
    return getattr(other, node.target._overloadname, None)  # type: ignore[union-attr]


def _is_private(changed: object, node: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether only `node` reads the tensor from here on, and no view of it exists."""
    if not isinstance(changed, fx.Node) or changed.op != "call_function" or is_view(changed):
        return False
    return all(user is node or (order[user] < order[node] and not is_view(user)) for user in changed.users)
