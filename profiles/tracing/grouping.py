"""Which layer an operator belongs to.

Operators are taken in the order of the trace. A *run* is a maximal sequence of consecutive operators with the same
key, and a layer is one run or several neighbouring runs. Layers are therefore intervals of a topological order, and
contracting intervals of a topological order never makes a cycle: the layer graph is a DAG whatever the model does.

Operators that depend on no model input and no parameter (masks, positions, rotary tables) are in no layer.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import torch
from torch import fx, nn

from planner.runtime.program import LOSS_LAYER
from profiles.model import Grain

REPEATED = (nn.ModuleList, nn.Sequential)

HEAVY = {
    "addbmm", "addmm", "baddbmm", "bmm", "convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "einsum", "linear", "matmul", "mm", "scaled_dot_product_attention",
    "_grouped_mm", "grouped_mm_fallback", "whole",
}  # fmt: skip
"""Operators that make a run worth a layer of its own even if it has no parameters."""


@dataclass(slots=True)
class Run:
    """Consecutive operators of one module path. `call` counts repeated calls of the same module."""

    path: str
    call: str
    in_block: bool
    nodes: list[fx.Node]
    heavy: bool = False
    parameters: set[int] = field(default_factory=set)
    parameter_bytes: int = 0

    @property
    def light(self) -> bool:
        """Not worth a layer of its own."""
        return not self.parameters and not self.heavy


def group(module: fx.GraphModule, model: nn.Module, grain: Grain) -> dict[str, str]:
    """Name of each operator that is in a layer -> layer id, in the order of the trace.

    Grain `block`: the path is cut at the first element of a repeated container (ModuleList, Sequential): one layer
    per transformer block. What stands between blocks is joined to one layer (embedding, head). Grain `module`: one
    layer per innermost module. In both, runs without parameters and without heavy operators (residual additions,
    activations) join the run before them. A layer is named after its run with the most parameter bytes; later
    layers of the same name get `#2`, `#3` ...
    """
    runs = _join_light(_runs(module, model, grain))
    if grain is Grain.BLOCK and any(run.in_block for run in runs):
        runs = _join_loose(runs)
    layer_of: dict[str, str] = {}
    for run, name in zip(runs, unique_names([run.path or "model" for run in runs]), strict=True):
        layer_of.update((node.name, name) for node in run.nodes)
    for node in module.graph.nodes:  # an element of a tuple lives where the tuple is made
        if node.target is operator.getitem and node.args[0].name in layer_of:
            layer_of[node.name] = layer_of[node.args[0].name]
    return layer_of


def varying_nodes(module: fx.GraphModule) -> set[fx.Node]:
    """Operators that depend on a model input or a parameter, or that change a buffer in place."""
    varying: set[fx.Node] = set()
    for node in module.graph.nodes:
        if _starts_varying(module, node) or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
    return varying


def attribute(module: nn.Module, node: fx.Node) -> torch.Tensor:
    """The parameter, buffer or constant that a get_attr node reads."""
    value: object = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    assert isinstance(value, torch.Tensor)
    return value


def is_view(node: fx.Node) -> bool:
    """Whether the operator may return its input's storage (views, casts to the same dtype)."""
    schema = getattr(node.target, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returns)


def block_path(model: nn.Module, path: str) -> tuple[str, bool]:
    """`path` cut behind the first element of a repeated container, and whether there is one.

    An element that only wraps another Sequential is a stage of blocks (ResNet): the cut is then inside it.
    """
    parts = path.split(".") if path else []
    for end, (parent, child) in enumerate(pairwise(_chain(model, parts)), start=1):
        if isinstance(parent, REPEATED) and not _wraps_sequential(child):
            return ".".join(parts[:end]), True
    return path, False


def _runs(module: fx.GraphModule, model: nn.Module, grain: Grain) -> list[Run]:
    varying = varying_nodes(module)
    operators = [n for n in module.graph.nodes if n.op == "call_function" and n in varying]
    runs = []
    for (path, call, in_block), nodes in groupby(operators, key=lambda node: _key(node, model, grain)):
        members = list(nodes)
        run = Run(path, call, in_block, members, any(_is_heavy(node) for node in members))
        _count_parameters(run, module)
        runs.append(run)
    return runs


def _key(node: fx.Node, model: nn.Module, grain: Grain) -> tuple[str, str, bool]:
    """(module path at the grain, which call of that module, inside a block)."""
    stack: dict[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
    calls = {path: key.partition("@")[2] for key, (path, _) in stack.items()}
    innermost = list(calls)[-1] if calls else ""
    path, in_block = block_path(model, innermost)
    if grain is Grain.MODULE:
        path = innermost
    return path, calls.get(path, ""), in_block


def _count_parameters(run: Run, module: fx.GraphModule) -> None:
    for node in run.nodes:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and _is_parameter(module, source):
                value = attribute(module, source)
                if id(value) not in run.parameters:
                    run.parameters.add(id(value))
                    run.parameter_bytes += value.numel() * value.element_size()


def _join_light(runs: list[Run]) -> list[Run]:
    """Runs without parameters and heavy operators join the run before them; leading ones join the run after them."""
    joined: list[Run] = []
    for run in runs:
        if joined and (run.light or joined[-1].light or _same(joined[-1], run)):
            joined[-1] = _merge(joined[-1], run)
        else:
            joined.append(run)
    return joined


def _join_loose(runs: list[Run]) -> list[Run]:
    """Neighbouring runs outside of blocks become one layer: the embedding before them, the head behind them."""
    joined: list[Run] = []
    for run in runs:
        if joined and not run.in_block and not joined[-1].in_block:
            joined[-1] = _merge(joined[-1], run)
        else:
            joined.append(run)
    return joined


def _merge(first: Run, second: Run) -> Run:
    """Both runs as one, named after the one with more parameter bytes (the first one if equal)."""
    name = second if second.parameter_bytes > first.parameter_bytes else first
    return Run(
        name.path,
        name.call,
        name.in_block,
        first.nodes + second.nodes,
        first.heavy or second.heavy,
        first.parameters | second.parameters,
        first.parameter_bytes + second.parameter_bytes,
    )


def _same(first: Run, second: Run) -> bool:
    return (first.path, first.call) == (second.path, second.call)


def unique_names(names: list[str]) -> Iterator[str]:
    """Each name once; later ones get `#2`, `#3` ...; `loss` is taken by the loss layer."""
    seen: Counter[str] = Counter({LOSS_LAYER: 1})
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def _chain(model: nn.Module, parts: list[str]) -> Iterator[nn.Module | None]:
    """The model and each submodule on the way down `parts` (None where a part is no module)."""
    here: nn.Module | None = model
    yield here
    for part in parts:
        here = getattr(here, part, None)
        yield here


def _wraps_sequential(module: nn.Module | None) -> bool:
    if module is None:
        return False
    children = list(module.children())
    return len(children) == 1 and isinstance(children[0], nn.Sequential)


def _is_parameter(module: nn.Module, node: fx.Node) -> bool:
    return isinstance(attribute(module, node), nn.Parameter)


def _starts_varying(module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "get_attr":
        return _is_parameter(module, node)
    return node.op == "placeholder" or _mutates_buffer(node)


def _mutates_buffer(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and any(n.op == "get_attr" for n in node.all_input_nodes)


def _is_heavy(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", node.target)
    return getattr(packet, "__name__", "") in HEAVY
