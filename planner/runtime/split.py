"""Cuts a traced program into stage modules that run one after another, or in different processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from planner.errors import InputError
from planner.runtime.program import LOSS_LAYER, TracedProgram

CONSTANTS = -1
"""Number of the pseudo stage that holds the constants."""


class StageModule(fx.GraphModule):
    """The operators of some layers, with their parameters under the original names.

    Call it with the tensors of `input_names` in that order; it returns a tuple with those of `output_names`. Names are
    those of the traced graph's nodes; a name in `model_inputs` is an input of the whole model (data), the others are
    activations that earlier stages make. Masks, positions and other values that depend on no input and no parameter
    are computed inside. Parameters are shared with the traced module, not copied. The layers are `layer_ids`, because a
    model may have a module `layers`.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    model_inputs: tuple[str, ...]
    layer_ids: tuple[str, ...]


def split_layers(
    program: TracedProgram, groups: Sequence[Sequence[str]], *, inline_constants: bool = True
) -> list[StageModule]:
    """One `StageModule` per group of layer ids.

    Inputs and outputs stand in the order of the trace. The loss layer may be named in a group; it has no operators and
    is ignored. Every layer must be in exactly one group, else InputError. Without `inline_constants` the values that
    depend on no input and no parameter are further inputs (see `constants_module`) instead of computed inside.
    """
    group_of = _check(program, groups)
    number_of = {node: group_of[layer] for node, layer in program.layer_of_node.items()}
    if not inline_constants:
        number_of |= {node.name: CONSTANTS for node in _constant_nodes(program)}
    return [_stage(program, number_of, number, tuple(group)) for number, group in enumerate(groups)]


def constants_module(program: TracedProgram) -> StageModule:
    """Computes the values that depend on no input and no parameter, for stages split without `inline_constants`."""
    number_of = dict.fromkeys(program.layer_of_node, 0)
    number_of |= {node.name: CONSTANTS for node in _constant_nodes(program)}
    return _stage(program, number_of, CONSTANTS, ())


def model_input_names(program: TracedProgram) -> tuple[str, ...]:
    """Names of the model's positional inputs, in the order of `make_batch`."""
    return tuple(node.name for node in program.module.graph.nodes if node.op == "placeholder")


def output_name(program: TracedProgram) -> str:
    """Name of the tensor that the loss reads."""
    return program.module.graph.output_node().all_input_nodes[0].name


def _constant_nodes(program: TracedProgram) -> list[fx.Node]:
    nodes = program.module.graph.nodes
    return [n for n in nodes if n.op == "call_function" and n.name not in program.layer_of_node]


def _check(program: TracedProgram, groups: Sequence[Sequence[str]]) -> dict[str, int]:
    known = {layer.id for layer in program.graph.layers} - {LOSS_LAYER}
    group_of: dict[str, int] = {}
    for number, group in enumerate(groups):
        members = [layer for layer in group if layer != LOSS_LAYER]
        if not members:
            raise InputError(f"stage {number} has no layer with operators: give it at least one layer of the model")
        for layer in members:
            if layer not in known:
                raise InputError(f"stage {number} names {layer!r}, which is not a layer of {program.graph.name!r}")
            if layer in group_of:
                raise InputError(f"layer {layer!r} is in stages {group_of[layer]} and {number}: put it in one")
            group_of[layer] = number
    if len(group_of) < len(known):
        missing = sorted(known - group_of.keys())
        raise InputError(f"{len(missing)} layers are in no stage, among them {missing[0]!r}: put each in one")
    return group_of


def _stage(program: TracedProgram, number_of: dict[str, int], number: int, layers: tuple[str, ...]) -> StageModule:
    nodes = list(program.module.graph.nodes)
    needed = _closure(nodes, lambda node: number_of.get(node.name) == number, number_of)
    foreign = [n for n in nodes if n in needed and _is_input(n, number_of, number)]
    outputs = [n for n in nodes if number_of.get(n.name) == number and _leaves(n, number_of, number)]
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in foreign:
        copies[node] = graph.placeholder(node.name)
    for node in nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, lambda old: copies[old])
    graph.output(tuple(copies[node] for node in outputs))
    stage = StageModule(program.module, graph, class_name="StageModule")
    stage.input_names = tuple(node.name for node in foreign)
    stage.output_names = tuple(node.name for node in outputs)
    stage.model_inputs = tuple(node.name for node in foreign if node.op == "placeholder")
    stage.layer_ids = layers
    return stage


def _closure(nodes: list[fx.Node], is_member: Callable[[fx.Node], bool], number_of: dict[str, int]) -> set[fx.Node]:
    """The stage's operators, the attributes and constants they need, and the foreign tensors they read."""
    needed = {node for node in nodes if is_member(node)}
    for node in reversed(nodes):
        if node in needed and (is_member(node) or node.name not in number_of):
            needed.update(node.all_input_nodes)
    return needed


def _is_input(node: fx.Node, number_of: dict[str, int], number: int) -> bool:
    return node.op == "placeholder" or number_of.get(node.name, number) != number


def _leaves(node: fx.Node, number_of: dict[str, int], number: int) -> bool:
    """Whether another stage or the loss reads the tensor."""
    return any(user.op == "output" or number_of.get(user.name, number) != number for user in node.users)
