"""Training graphs whose backward part does not mirror the forward part: operator graphs of the device-placement files.

The conventions are those of the authors' own program (Tarnawski et al. 2020):

- what shares a colour class moves together, forward and backward nodes alike; a node without a class is one by itself;
- classes are ordered by forward edges. A class of backward nodes only (an *orphan*) is ordered by its edges too: those
  between backward nodes count the other way round, as the backward pass runs against the forward one. Classes on a
  loop are one;
- every node has one output. A stage pays for it once if it holds the node or a reader, but not all of them; which way
  it moves is no matter.

So each node's output is a tensor between the classes that it joins. Ours run from a layer to layers after it: the class
that precedes all others of a tensor is taken as its maker, which changes no cost. For tensors of backward nodes half of
the bytes move forward and half of them back, so that a stage's backward pass waits for those after it.
"""

from __future__ import annotations

from collections import defaultdict

from planner.errors import InputError
from planner.ideals import bits, strong_components
from profiles.importers._folded import Folded, FoldedArc, FoldedNode
from profiles.importers._placement_file import Arc, Node, PlacementFile


def unmirrored(file: PlacementFile) -> Folded:
    """Forward nodes with the backward nodes of their class folded into the first, orphans, and all tensors."""
    order = _Order(file)
    arcs: dict[tuple[int, int, str], FoldedArc] = {}
    for node in file.nodes:
        for arc in _tensors(order, node, file.cost_of.get(node.id, 0.0)):
            arcs.setdefault((arc.source, arc.target, arc.tensor), arc)
    return Folded(
        nodes=order.layers(),
        arcs=tuple(arcs.values()),
        colocated=order.colocated(),
        trains=True,
        mirrored=False,
    )


def _tensors(order: _Order, node: Node, cost: float) -> list[FoldedArc]:
    """The output of a node: to the forward nodes that read it, and between the sets of nodes that it joins."""
    joined = {order.part[i] for i in (node.id, *order.readers[node.id])}
    first = order.first(joined)
    if first is None:
        raise InputError(
            f"the output of node {node.id} ({node.name!r}) joins nodes of which none comes before all others in the "
            "forward pass: training graphs of this shape are not read; use the inference file"
        )
    forward = [] if node.is_backward else [i for i in order.readers[node.id] if not order.backward[i]]
    if not node.is_backward and first == order.part[node.id]:
        others = {order.home[i] for i in order.readers[node.id] if order.part[i] != first}
        return [FoldedArc(source=node.id, target=target, cost=cost) for target in sorted({*forward, *others})]
    name = f"{'gradient' if node.is_backward else 'output'} of node {node.id}"
    ends = [order.first_of[p] for p in sorted(joined - {first})]
    back = bool(node.is_backward)
    source = order.first_of[first]
    return [FoldedArc(source=node.id, target=target, cost=0.0) for target in forward] + [
        FoldedArc(source=source, target=target, cost=cost, tensor=name, both_ways=back) for target in ends
    ]


class _Order:
    """Which nodes move together, and what precedes what.

    `home[i]` is the node whose layer holds node i, `part[i]` the number of the set that it moves with (in topological
    order), `above[p]` the sets before set p as a bitset, `first_of[p]` one layer of the set.
    """

    def __init__(self, file: PlacementFile) -> None:
        self.nodes = file.nodes
        self.backward = {node.id: bool(node.is_backward) for node in file.nodes}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for arc in file.edges:
            self.readers[arc.source].append(arc.target)
        self.members: dict[tuple[str, int], list[int]] = defaultdict(list)
        key = {n.id: ("node", n.id) if n.color is None else ("colour", n.color) for n in file.nodes}
        for node in file.nodes:
            self.members[key[node.id]].append(node.id)
        self.orphan = {name for name, ids in self.members.items() if all(self.backward[i] for i in ids)}
        after: dict[tuple[str, int], set[tuple[str, int]]] = {name: set() for name in self.members}
        for arc in file.edges:
            pair = self._precedence(arc, key[arc.source], key[arc.target])
            if pair and pair[0] != pair[1]:
                after[pair[0]].add(pair[1])
        self._number(key, after)

    def first(self, parts: set[int]) -> int | None:
        """The one of some sets that precedes all others of them."""
        return next((p for p in parts if all(p == q or self.above[q] >> p & 1 for q in parts)), None)

    def layers(self) -> tuple[FoldedNode, ...]:
        """In file order."""
        folded: dict[int, list[Node]] = {node.id: [] for node in self.nodes if self.home[node.id] == node.id}
        for node in self.nodes:
            if self.home[node.id] != node.id:
                folded[self.home[node.id]].append(node)
        return tuple(FoldedNode(forward=n, backward=tuple(folded[n.id])) for n in self.nodes if n.id in folded)

    def colocated(self) -> tuple[tuple[int, ...], ...]:
        """Layers of sets of more than one."""
        sets: dict[int, list[int]] = defaultdict(list)
        for node in self.nodes:
            if self.home[node.id] == node.id:
                sets[self.part[node.id]].append(node.id)
        return tuple(tuple(ids) for ids in sets.values() if len(ids) > 1)

    def _precedence(
        self, arc: Arc, source: tuple[str, int], target: tuple[str, int]
    ) -> tuple[tuple[str, int], tuple[str, int]] | None:
        """Which class comes first because of an edge; None where it orders nothing."""
        if not self.backward[arc.source] and not self.backward[arc.target]:
            return source, target
        if source not in self.orphan and target not in self.orphan:
            return None
        return (target, source) if self.backward[arc.source] else (source, target)

    def _number(self, key: dict[int, tuple[str, int]], after: dict[tuple[str, int], set[tuple[str, int]]]) -> None:
        """Set `part`, `above`, `first_of` and `home`."""
        names = list(self.members)
        number = {name: i for i, name in enumerate(names)}
        loops = strong_components({number[name]: {number[other] for other in after[name]} for name in names})
        part_of = {names[i]: p for p, loop in enumerate(loops) for i in loop}
        self.part = {i: part_of[name] for i, name in key.items()}
        self.above = [0] * len(loops)
        for p, loop in enumerate(loops):
            for other in {part_of[later] for i in loop for later in after[names[i]]} - {p}:
                self.above[other] |= 1 << p
        for p in range(len(loops)):
            self.above[p] |= _union(self.above, self.above[p])
        self.home = {i: self._home(i, self.members[name]) for i, name in key.items()}
        self.first_of = {self.part[node.id]: node.id for node in reversed(self.nodes) if self.home[node.id] == node.id}

    def _home(self, node: int, members: list[int]) -> int:
        """A backward node lives in the first forward node of its class, where there is one."""
        if not self.backward[node]:
            return node
        return next((i for i in members if not self.backward[i]), node)


def _union(above: list[int], parts: int) -> int:
    found = 0
    for p in bits(parts):
        found |= above[p]
    return found
