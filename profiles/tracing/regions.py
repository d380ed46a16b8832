"""Regions without gradients or without autocast, which the export keeps as graphs of their own, put in their place."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from planner.errors import InputError

NO_GRADIENT = "wrap_with_set_grad_enabled"
AUTOCAST = "wrap_with_autocast"


def inline_regions(module: fx.GraphModule) -> None:
    """Replaces every region by its operators, also regions inside of regions.

    Without gradients: what enters the region is detached, so that nothing inside gets a history. InputError for a
    region with autocast, whose casts the operators do not show.
    """
    while regions := [node for node in module.graph.nodes if _kind(node) in (NO_GRADIENT, AUTOCAST)]:
        for node in regions:
            _inline(module, node)


def _kind(node: fx.Node) -> str:
    return str(getattr(node.target, "_name", "")) if node.op == "call_function" else ""


def _inline(module: fx.GraphModule, node: fx.Node) -> None:
    """The region's operators before `node`; who read its results reads theirs."""
    body, inputs = _parts(node)
    inner: fx.GraphModule = module.get_submodule(str(body.target))  # type: ignore[assignment]
    graph = module.graph
    copies: dict[fx.Node, Any] = {}
    placeholders = [inside for inside in inner.graph.nodes if inside.op == "placeholder"]
    with graph.inserting_before(node):
        copies.update(zip(placeholders, (_entering(graph, node, value) for value in inputs), strict=True))
        for inside in inner.graph.nodes:
            if inside.op not in ("placeholder", "output"):
                copies[inside] = graph.node_copy(inside, lambda old: copies[old])
    made: Any = inner.graph.output_node().args[0]
    results = [copies.get(value, value) for value in made]
    _replace_results(graph, node, results)


def _parts(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The region's body and its inputs."""
    position = next(i for i, value in enumerate(node.args) if isinstance(value, fx.Node))
    settings, body, inputs = node.args[:position], node.args[position], list(node.args[position + 1 :])
    if _kind(node) == AUTOCAST and settings[2] is not False:
        raise InputError(
            f"module {_path(node)!r} switches autocast on: cast its tensors explicitly, or build the model in the "
            "dtype that it is to compute in"
        )
    assert isinstance(body, fx.Node)
    return body, inputs  # type: ignore[return-value]


def _entering(graph: fx.Graph, node: fx.Node, value: fx.Node) -> fx.Node:
    """What the region reads for an input: detached where gradients are off and the value could carry one."""
    tensor = value.meta.get("val")
    if _kind(node) == AUTOCAST or node.args[0] is True or not _is_floating(value, tensor):
        return value
    detached = graph.call_function(torch.ops.aten.detach.default, (value,))
    detached.meta = {name: node.meta[name] for name in ("nn_module_stack", "stack_trace") if name in node.meta}
    if tensor is not None:
        detached.meta["val"] = tensor
    return detached


def _is_floating(value: fx.Node, tensor: object) -> bool:
    return not isinstance(tensor, torch.Tensor) or tensor.is_floating_point() or value.op == "get_attr"


def _replace_results(graph: fx.Graph, node: fx.Node, results: list[Any]) -> None:
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise InputError(f"region {node.name!r} hands its results on as one tuple: return tensors from it")
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    graph.erase_node(node)


def _path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else "(top)"
