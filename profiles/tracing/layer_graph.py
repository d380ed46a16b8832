"""The `LayerGraph` of a trace: parameters, tensors between layers, ties and tensor-parallel traffic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import fx, nn

from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.runtime.program import LOSS_LAYER
from profiles.tracing.collectives import collective_bytes
from profiles.tracing.exchanges import Exchange, exchanges
from profiles.tracing.grouping import attribute


def build_graph(
    module: fx.GraphModule, model: nn.Module, layer_of: dict[str, str], batch_size: int, name: str
) -> LayerGraph:
    """Layers in the order of the trace, then the loss layer, which reads the model's output and is colocated with it.

    Sizes are exact: bytes of the traced tensors divided by `batch_size` (rounded up for the rare tensor without a
    batch dimension). Parameters are counted in every layer that reads them; those that several layers read are tied.
    Parameters that the forward pass never reads (poolers, mask tokens) are counted where the model holds them, see
    `unread_parameters`: so the layers hold what the model holds.
    """
    ids = list(dict.fromkeys(layer_of.values()))
    parameters = layer_parameters(module, layer_of)
    unread = unread_parameters(model, parameters)
    reduced = collective_bytes(module, layer_of, batch_size)
    exchanged, entries = exchanges(module, layer_of, batch_size), _entries(module, layer_of)
    layers = [
        _layer(
            i, model, (parameters[i], unread.get(i, ())), reduced.get(i, 0), exchanged.get(i, Exchange()), entries[i]
        )
        for i in ids
    ]
    output = module.graph.output_node().all_input_nodes[0]
    if output.name not in layer_of:
        raise InputError(f"the output of model {name!r} depends on no input and no parameter: check its forward")
    last = layer_of[output.name]
    return LayerGraph(
        layers=(*layers, Layer(id=LOSS_LAYER, op="loss")),
        edges=(*_edges(module, layer_of, batch_size), _edge(output, last, LOSS_LAYER, batch_size, has_gradient=True)),
        tied=_tied(parameters, {key for exchange in exchanged.values() for key in exchange.expert_parameters}),
        colocated=((last, LOSS_LAYER),),
        name=name,
    )


def crossing_tensors(module: fx.GraphModule, layer_of: dict[str, str]) -> dict[fx.Node, list[str]]:
    """Producing operator -> the other layers that read its tensor, both in the order of the trace."""
    readers: dict[fx.Node, list[str]] = {}
    for node in module.graph.nodes:
        home = layer_of.get(node.name)
        if home is None:
            continue
        others = dict.fromkeys(layer_of[user.name] for user in node.users if user.name in layer_of)
        others.pop(home, None)
        if others:
            readers[node] = list(others)
    return readers


def layer_parameters(module: fx.GraphModule, layer_of: dict[str, str]) -> dict[str, dict[int, nn.Parameter]]:
    """Layer id -> the parameters that it reads, by identity."""
    found: dict[str, dict[int, nn.Parameter]] = {layer: {} for layer in layer_of.values()}
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        value = attribute(module, node)
        if isinstance(value, nn.Parameter):
            for user in node.users:
                found[layer_of[user.name]][id(value)] = value
    return found


def unread_parameters(
    model: nn.Module, parameters: dict[str, dict[int, nn.Parameter]]
) -> dict[str, list[nn.Parameter]]:
    """Layer id -> the parameters that no operator reads and that it holds: those of the module nearest to its own.

    The nearest layer shares the longest path with the parameter's name; the first one if several do.
    """
    read = {key for members in parameters.values() for key in members}
    unread = {name: p for name, p in model.named_parameters() if id(p) not in read}
    if not unread:
        return {}
    names = {id(p): name.split(".") for name, p in model.named_parameters()}
    paths = {
        layer: [layer.partition("#")[0].split("."), *(names[key] for key in members if key in names)]
        for layer, members in parameters.items()
    }
    held: dict[str, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in unread.items():
        parts = name.split(".")
        nearest = max(paths, key=lambda layer: max(_shared(parts, path) for path in paths[layer]))
        held[nearest].append(parameter)
    return held


def _shared(first: list[str], second: list[str]) -> int:
    """How many parts two paths have in common from their start."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _entries(module: fx.GraphModule, layer_of: dict[str, str]) -> dict[str, str]:
    """Layer id -> the innermost module of its first operator, where the layer's own module does not hold it."""
    entries: dict[str, str] = {}
    for node in module.graph.nodes:
        layer = layer_of.get(node.name)
        if layer is None or layer in entries:
            continue
        stack = node.meta.get("nn_module_stack") or {}
        innermost = list(stack.values())[-1][0] if stack else ""
        path = layer.partition("#")[0]
        related = f"{path}.".startswith(f"{innermost}.") or f"{innermost}.".startswith(f"{path}.")
        entries[layer] = "" if related or not innermost else innermost
    return entries


def _layer(
    layer: str,
    model: nn.Module,
    parameters: tuple[dict[int, nn.Parameter], Sequence[nn.Parameter]],
    reduced: int,
    exchanged: Exchange,
    entry: str,
) -> Layer:
    """`parameters` are those that the layer reads, and those that it only holds."""
    read, held = parameters[0].values(), (*parameters[0].values(), *parameters[1])
    return Layer(
        id=layer,
        op=_class_name(model, layer.partition("#")[0]),
        parameter_bytes=sum(_bytes(p) for p in held),
        replicated_parameter_bytes=sum(_bytes(p) for p in held if p.dim() <= 1),
        tensor_collective_bytes_per_sample=reduced,
        expert_parameter_bytes=exchanged.expert_parameter_bytes,
        expert_dispatch_bytes_per_sample=exchanged.expert_dispatch_bytes_per_sample,
        num_experts=exchanged.num_experts,
        expert_visits=exchanged.expert_visits,
        context_bytes_per_sample=exchanged.context_bytes_per_sample,
        kv_bytes_per_token=exchanged.kv_bytes_per_token,
        trainable=any(p.requires_grad for p in read) or not read,
        entry=entry,
    )


def _class_name(model: nn.Module, path: str) -> str:
    try:
        return type(model.get_submodule(path)).__name__
    except AttributeError:
        return type(model).__name__


def _edges(module: fx.GraphModule, layer_of: dict[str, str], batch_size: int) -> list[Edge]:
    trained = _carry_gradient(module)
    return [
        _edge(node, layer_of[node.name], reader, batch_size, has_gradient=node in trained)
        for node, readers in crossing_tensors(module, layer_of).items()
        for reader in readers
    ]


def _edge(node: fx.Node, source: str, target: str, batch_size: int, *, has_gradient: bool) -> Edge:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f"operator {node.name!r} ({node.target}) of layer {source!r} hands a {type(value).__name__} to layer "
            f"{target!r}, which only tensors can be: trace with the coarser grain 'block', or return a tensor there"
        )
    return Edge(
        source=source,
        target=target,
        tensor=node.name,
        bytes_per_sample=-(-_bytes(value) // batch_size),
        has_gradient=has_gradient and value.is_floating_point(),
    )


def _carry_gradient(module: fx.GraphModule) -> set[fx.Node]:
    """Floating tensors that depend on a trainable parameter."""
    trained: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            if attribute(module, node).requires_grad:
                trained.add(node)
        elif not trained.isdisjoint(node.all_input_nodes) and _is_floating(node):
            trained.add(node)
    return trained


def _is_floating(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()


def _tied(parameters: dict[str, dict[int, nn.Parameter]], experts: set[int]) -> tuple[TiedParameters, ...]:
    """One entry per set of layers that share parameters, with the bytes that exactly this set shares.

    `experts` are the identities of parameters of routed experts.
    """
    readers: dict[int, list[str]] = defaultdict(list)
    by_key: dict[int, nn.Parameter] = {}
    for layer, members in parameters.items():
        for key, parameter in members.items():
            readers[key].append(layer)
            by_key[key] = parameter
    shared: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for key, layers in readers.items():
        if len(layers) > 1:
            shared[tuple(layers)].append(key)
    return tuple(
        TiedParameters(
            layers=layers,
            parameter_bytes=sum(_bytes(by_key[key]) for key in keys),
            replicated_parameter_bytes=sum(_bytes(by_key[key]) for key in keys if by_key[key].dim() <= 1),
            expert_parameter_bytes=sum(_bytes(by_key[key]) for key in keys if key in experts),
        )
        for layers, keys in shared.items()
    )


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()
