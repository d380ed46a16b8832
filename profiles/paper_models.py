"""Published files in their papers' own search models (`docs/search-models.md`), as their programs read them.

An importer maps a file to our nouns, for plans that run. What is here keeps the figures for which a paper's values were
published: `planner.optimizers.hierarchical_dp` and `.piper_dp` search them, `benchmarks.peers` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.costs.stage_costs.hierarchy import Level
from planner.costs.stage_costs.pipedream import CrossingTensor, PipeDreamCost
from planner.costs.stage_costs.piper import DegreeCost, PiperCost, PiperEdge, Run
from planner.graph import GraphIndex, LayerGraph
from planner.ideals import group_layers, set_of
from profiles.importers import read_text
from profiles.importers._piper_file import Node, read_file
from profiles.importers.piper import layer_graph
from profiles.model import ProfiledModel


def pipedream_cost(text: str, levels: Sequence[Level], *, activation_transfers: bool = True) -> PipeDreamCost:
    """A `graph.txt` as PipeDream's optimizer sees it: without its inputs and without outputs that nobody reads."""
    model = read_text(text, format="pipedream")
    assert isinstance(model, ProfiledModel)
    index = GraphIndex(_trimmed(model.graph))
    groups, costs = group_layers(index), model.profiles[0].tables[0].layers
    passes = [costs[layer.id].forward_s + costs[layer.id].backward_s for layer in index.layers]
    return PipeDreamCost(
        groups=groups,
        work_s=[sum(passes[i] for i in members) for members in groups.layers],
        weight_bytes=[sum(index.layers[i].parameter_bytes for i in members) for members in groups.layers],
        tensors=tuple(
            CrossingTensor(
                source=groups.of_layer[tensor.source],
                targets=set_of({groups.of_layer[i] for i in tensor.targets}),
                num_bytes=tensor.bytes_per_sample,
            )
            for tensor in index.tensors
        ),
        levels=tuple(levels),
        activation_transfers=activation_transfers,
    )


def pipedream_layers(text: str) -> list[str]:
    """The layer ids behind the groups of `pipedream_cost`, in order."""
    model = read_text(text, format="pipedream")
    assert isinstance(model, ProfiledModel)
    index = GraphIndex(_trimmed(model.graph))
    return [index.layers[members[0]].id for members in group_layers(index).layers]


def _trimmed(graph: LayerGraph) -> LayerGraph:
    """Without sources called `Input...`, then without sinks called `__getitem__...`."""
    read = {edge.target for edge in graph.edges}
    dropped = {layer.id for layer in graph.layers if layer.op.startswith("Input") and layer.id not in read}
    made = {edge.source for edge in graph.edges if edge.source not in dropped}
    dropped |= {layer.id for layer in graph.layers if layer.op.startswith("__getitem__") and layer.id not in made}
    return replace(
        graph,
        layers=tuple(layer for layer in graph.layers if layer.id not in dropped),
        edges=tuple(edge for edge in graph.edges if not dropped & {edge.source, edge.target}),
    )


def piper_cost(
    text: str,
    *,
    num_devices: int | None = None,
    memory_bytes: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
) -> PiperCost:
    """The file in Piper's own search model; devices, memory and bandwidth may differ from the file's.

    Times are taken as seconds, as Piper's program does.
    """
    file = read_file(text)
    index = GraphIndex(layer_graph(file))
    groups, name = group_layers(index), file.layer_ids()
    group = {node.id: groups.of_layer[index.position[name[node.id]]] for node in file.nodes}
    nodes = {group[node.id]: node for node in file.nodes}
    return PiperCost(
        groups=groups,
        layers=[_degrees(nodes[g], group) for g in range(len(groups))],
        edges=tuple(
            PiperEdge(source=group[arc.source], target=group[arc.target], num_bytes=arc.num_bytes) for arc in file.edges
        ),
        bandwidth_bytes_per_s=bandwidth_bytes_per_s or file.bandwidth,
        num_microbatches=file.num_microbatches,
        num_devices=num_devices or file.num_devices,
        memory_bytes=file.memory_bytes if memory_bytes is None else memory_bytes,
    )


def piper_layers(text: str) -> list[str]:
    """The layer ids behind the groups of `piper_cost`, in order."""
    index = GraphIndex(layer_graph(read_file(text)))
    return [index.layers[members[0]].id for members in group_layers(index).layers]


def _degrees(node: Node, group: dict[int, int]) -> dict[int, DegreeCost]:
    made = {}
    for tensor in node.degrees:
        variants = node.at(tensor)
        made[tensor] = DegreeCost(
            runs=tuple(Run(compute_s=v.time, kept_bytes=v.kept_bytes, fixed_bytes=v.fixed_bytes) for v in variants),
            weight_bytes=variants[0].weight_bytes,
            sync_from=_by_group(variants[0].sync_from, group),
            sync_to=_by_group(variants[0].sync_to, group),
        )
    return made


def _by_group(sync: dict[str, float], group: dict[int, int]) -> dict[int, float]:
    return {group[int(other)]: num_bytes for other, num_bytes in sync.items() if num_bytes}
