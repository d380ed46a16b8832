"""Backward nodes of a device-placement file folded into their forward partners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from planner.errors import InputError
from profiles.importers._placement_file import Arc, Node, PlacementFile

REMEDY = "training graphs of this shape are not read yet; use the inference file"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedNode:
    """A forward node with the backward node of its colour class, where there is one."""

    forward: Node
    backward: Node | None = None

    @property
    def size(self) -> float:
        """Bytes of both."""
        return self.forward.size + (self.backward.size if self.backward else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The forward graph. `trains` says whether there are backward nodes at all."""

    nodes: tuple[FoldedNode, ...]
    arcs: tuple[Arc, ...]
    trains: bool


def fold(file: PlacementFile) -> Folded:
    """The forward nodes in file order, each with its backward partner.

    Exact where a gradient costs what its tensor costs: the backward edges must be the forward ones, turned round or
    repeated, with the same costs. Anything else is an InputError that names a node.
    """
    backward = [node for node in file.nodes if node.is_backward]
    if not backward:
        return Folded(nodes=tuple(FoldedNode(forward=n) for n in file.nodes), arcs=file.edges, trains=False)
    partner = _partners(file.nodes)
    forward_of = {node.id: forward for forward, node in partner.items()}
    arcs = [arc for arc in file.edges if arc.source not in forward_of and arc.target not in forward_of]
    _check_backward_arcs(file, arcs, forward_of)
    nodes = tuple(FoldedNode(forward=n, backward=partner.get(n.id)) for n in file.nodes if not n.is_backward)
    return Folded(nodes=nodes, arcs=tuple(arcs), trains=True)


def _partners(nodes: Iterable[Node]) -> dict[int, Node]:
    """Forward node id -> its backward node: the only two of their colour class."""
    classes: dict[int | None, list[Node]] = defaultdict(list)
    for node in nodes:
        classes[node.color].append(node)
    partners: dict[int, Node] = {}
    for color, members in classes.items():
        backward = [node for node in members if node.is_backward]
        if not backward:
            continue
        forward = [node for node in members if not node.is_backward]
        if color is None or len(forward) != 1 or len(backward) != 1:
            raise InputError(
                f"backward node {backward[0].id} ({backward[0].name!r}) has {len(forward)} forward and "
                f"{len(backward) - 1} other backward nodes in colour class {color}, wanted 1 and 0: {REMEDY}"
            )
        partners[forward[0].id] = backward[0]
    return partners


def _check_backward_arcs(file: PlacementFile, arcs: Iterable[Arc], forward_of: dict[int, int]) -> None:
    """Backward arcs, seen between forward partners, are the forward arcs again or all of them turned round."""
    wanted = {(arc.source, arc.target): arc.cost for arc in arcs}
    found: dict[tuple[int, int], float] = {}
    for arc in file.edges:
        source, target = forward_of.get(arc.source), forward_of.get(arc.target)
        if source is not None and target is not None:
            found[source, target] = arc.cost
        elif (source is not None or target is not None) and forward_of.get(arc.target) != arc.source:
            raise InputError(
                f"edge {arc.source} -> {arc.target} joins a forward node and a backward node of another colour class: "
                f"{REMEDY}"
            )
    turned = {(target, source): cost for (source, target), cost in found.items()}
    if wanted in (found, turned):
        return
    nearest = min(found, turned, key=lambda arcs: len(arcs.items() ^ wanted.items()))
    source, target = min(pair for pair, _ in nearest.items() ^ wanted.items())
    raise InputError(
        f"node {source}: its edge to node {target} has no backward edge of the same cost (or the other way round): "
        f"{REMEDY}"
    )
