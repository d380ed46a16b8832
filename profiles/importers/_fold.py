"""Backward nodes of a device-placement file folded into layers.

Nodes of one colour class share a stage, so a layer graph needs only the forward nodes, each with the backward nodes
that go where it goes. Two shapes of files are told apart:

- *mirrored*: every colour class is a forward and a backward node, and the backward edges are the forward ones, turned
  round or repeated, with the same costs. Then each tensor has a gradient that costs what it costs.
- *any other* (`profiles.importers._unmirrored`): tensors of the backward pass become tensors of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from profiles.importers._folded import Folded, FoldedArc, FoldedNode
from profiles.importers._placement_file import Arc, Node, PlacementFile
from profiles.importers._unmirrored import unmirrored


def fold(file: PlacementFile) -> Folded:
    """The forward nodes in file order, each with its backward nodes, and the tensors between them.

    InputError, with the node, when a tensor of the backward pass cannot be expressed.
    """
    if not any(node.is_backward for node in file.nodes):
        nodes = tuple(FoldedNode(forward=node) for node in file.nodes)
        return Folded(nodes=nodes, arcs=_plain(file.edges), colocated=_classes(file.nodes), trains=False)
    partner = _partners(file.nodes)
    return mirrored if partner and (mirrored := _mirrored(file, partner)) else unmirrored(file)


def _mirrored(file: PlacementFile, partner: dict[int, Node]) -> Folded | None:
    """The forward graph with partners, where the backward edges mirror it; else None."""
    forward_of = {node.id: forward for forward, node in partner.items()}
    arcs = [arc for arc in file.edges if arc.source not in forward_of and arc.target not in forward_of]
    if not _mirrors(file, arcs, forward_of):
        return None
    forward = [node for node in file.nodes if not node.is_backward]
    return Folded(
        nodes=tuple(FoldedNode(forward=n, backward=(partner[n.id],) if n.id in partner else ()) for n in forward),
        arcs=_plain(arcs),
        colocated=_classes(forward),
        trains=True,
    )


def _partners(nodes: Iterable[Node]) -> dict[int, Node] | None:
    """Forward node id -> its backward node, the only two of their colour class; None where it is not so."""
    classes: dict[int | None, list[Node]] = defaultdict(list)
    for node in nodes:
        classes[node.color].append(node)
    partners: dict[int, Node] = {}
    for color, members in classes.items():
        backward = [node for node in members if node.is_backward]
        forward = [node for node in members if not node.is_backward]
        if backward and (color is None or len(forward) != 1 or len(backward) != 1):
            return None
        if backward:
            partners[forward[0].id] = backward[0]
    return partners


def _mirrors(file: PlacementFile, arcs: Iterable[Arc], forward_of: dict[int, int]) -> bool:
    """Whether backward arcs, between forward partners, are the forward arcs again or all of them turned round."""
    wanted = {(arc.source, arc.target): arc.cost for arc in arcs}
    found: dict[tuple[int, int], float] = {}
    for arc in file.edges:
        source, target = forward_of.get(arc.source), forward_of.get(arc.target)
        if source is not None and target is not None:
            found[source, target] = arc.cost
        elif (source is not None or target is not None) and target != arc.source:
            return False
    return wanted in (found, {(target, source): cost for (source, target), cost in found.items()})


def _plain(arcs: Iterable[Arc]) -> tuple[FoldedArc, ...]:
    return tuple(FoldedArc(source=arc.source, target=arc.target, cost=arc.cost) for arc in arcs)


def _classes(nodes: Iterable[Node]) -> tuple[tuple[int, ...], ...]:
    """Colour classes of more than one node, by node ids."""
    classes: dict[int, list[int]] = defaultdict(list)
    for node in nodes:
        if node.color is not None:
            classes[node.color].append(node.id)
    return tuple(tuple(members) for members in classes.values() if len(members) > 1)
