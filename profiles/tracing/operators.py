"""Grain `operator`: one layer per operator that does work.

Two kinds of operators get no layer of their own. Both joins contract an edge that is the only one on one of its sides,
so the layer graph stays a DAG:

- *Trivial* ones (views, casts, copies, elements of tuples, dropout in evaluation) join the layer that makes all their
  inputs.
- Those that read parameters only (a transposed weight) join the layer that is their only reader.
"""

from __future__ import annotations

import operator

from torch import fx

from profiles.tracing.grouping import is_view, unique_names, varying_nodes

COPIES = {"_to_copy", "clone", "contiguous", "dropout", "feature_dropout", "getitem", "to", "type_as"}
"""Operators that only move or convert their input, besides views."""


def group_operators(module: fx.GraphModule) -> dict[str, str]:
    """Name of each operator that is in a layer -> layer id, layers in the order of the trace.

    A layer is named after its working operator: the module that calls it, then the operator (`h.0.mlp.act.gelu`);
    later ones of the same name get `#2`, `#3` ...
    """
    varying, from_data = varying_nodes(module), _from_data(module)
    operators = [n for n in module.graph.nodes if n.op == "call_function" and n in varying]
    leader = _join_makers(operators, from_data)
    _join_readers([node for node in operators if node not in from_data], leader)
    leaders = [node for node in operators if leader[node] is node]
    name = dict(zip(leaders, unique_names([_path(node) for node in leaders]), strict=True))
    layer_of = {node.name: name[node] for node in leaders}
    return layer_of | {node.name: name[leader[node]] for node in operators}


def _from_data(module: fx.GraphModule) -> set[fx.Node]:
    """Nodes that depend on a model input."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder" or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _join_makers(operators: list[fx.Node], from_data: set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Operator -> the one that leads its layer: trivial ones follow what makes their data, elements their tuple."""
    leader: dict[fx.Node, fx.Node] = {}
    for node in operators:
        makers = {leader[source] for source in node.all_input_nodes if source in leader and source in from_data}
        if _is_element(node):
            leader[node] = leader[node.all_input_nodes[0]]
        else:
            leader[node] = makers.pop() if len(makers) == 1 and _is_trivial(node) else node
    return leader


def _join_readers(parameters_only: list[fx.Node], leader: dict[fx.Node, fx.Node]) -> None:
    """Operators that read parameters only follow the layer that is their only reader (last ones first)."""
    for node in reversed(parameters_only):
        if _is_element(node):
            continue
        elements = [user for user in node.users if _is_element(user)]
        users = {user for made in (node, *elements) for user in made.users if not _is_element(user)}
        readers = {leader[user] for user in users if user in leader}
        if len(readers) == 1:
            leader[node] = readers.pop()
            leader.update(dict.fromkeys(elements, leader[node]))


def _is_element(node: fx.Node) -> bool:
    """Whether the operator takes an element of a tuple: it lives where the tuple is made."""
    return node.target is operator.getitem


def _is_trivial(node: fx.Node) -> bool:
    return _name(node) in COPIES or is_view(node)


def _name(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", node.target))


def _path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    module = list(stack.values())[-1][0] if stack else ""
    return f"{module}.{_name(node)}" if module else _name(node)
