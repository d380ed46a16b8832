"""Ideals: sets of layers that contain whatever their layers read. A prefix of stages is always one.

Layers that must share a stage are contracted into groups first, so that an ideal is a set of groups, held as the bits
of a Python int: bit g is group g. Chains of ideals 0 = I_0 < I_1 < ... < I_k = all are exactly the divisions into k
stages between which tensors only flow forward, with stage j = I_j without I_{j-1} (Tarnawski et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from planner.errors import LimitError
from planner.graph import GraphIndex

MAX_BITS = 2_000_000_000
"""Groups times ideals that are enumerated at most: 0.25 GB, and as much again while it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Layers that always move together, in topological order of the groups.

    `layers[g]` are the layer positions of group g, ascending; `of_layer[i]` is the group of layer i. `before[g]` and
    `after[g]` are the groups next to g, as bitsets.
    """

    layers: tuple[tuple[int, ...], ...]
    of_layer: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def everything(self) -> int:
        """The ideal of all groups."""
        return (1 << len(self.layers)) - 1

    def positions(self, groups: int) -> tuple[int, ...]:
        """Layer positions of a set of groups, ascending."""
        return tuple(sorted(layer for g in bits(groups) for layer in self.layers[g]))

    def maximal(self, ideal: int) -> int:
        """Groups of the ideal that nothing in it reads: each can be taken away and an ideal is left."""
        return set_of(g for g in bits(ideal) if not self.after[g] & ideal)

    def addable(self, ideal: int) -> int:
        """Groups outside whose inputs are all inside: each can be added and the set stays an ideal."""
        return set_of(g for g in range(len(self)) if not ideal >> g & 1 and not self.before[g] & ~ideal)

    def is_ideal(self, groups: int) -> bool:
        """Whether the set contains whatever its groups read."""
        return all(not self.before[g] & ~groups for g in bits(groups))


def bits(number: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def set_of(positions: Iterable[int]) -> int:
    """The bitset of some positions."""
    made = 0
    for position in positions:
        made |= 1 << position
    return made


def group_layers(index: GraphIndex) -> Groups:
    """The finest groups that keep colocated layers together.

    Colocated sets that overlap are joined, and so is everything on a loop between groups: a layer that reads from a
    colocated set and feeds it can be in no other stage. O(layers + edges).
    """
    owner = _joined(len(index), [index.positions(names) for names in index.graph.colocated])
    after: dict[int, set[int]] = {own: set() for own in sorted(set(owner))}
    for layer, following in enumerate(index.successors):
        after[owner[layer]] |= {owner[other] for other in following} - {owner[layer]}
    component = {own: number for number, loop in enumerate(strong_components(after)) for own in loop}
    return _groups(index, [component[own] for own in owner])


def enumerate_ideals(groups: Groups, limit: int, expired: Callable[[], bool] = lambda: False) -> tuple[int, ...]:
    """All ideals, by size and then by value, from the empty one to the full one.

    LimitError when there are more than `limit`, or more than `MAX_BITS` in all, or when `expired()` turns true.
    O(ideals x width) steps; memory is what is returned and one level.
    """
    limit = min(limit, MAX_BITS // max(1, len(groups)))
    found: list[int] = []
    level = {0: groups.addable(0)}
    while level:
        found += sorted(level)
        if len(found) > limit:
            raise LimitError(
                f"the graph of {len(groups)} groups has more than {limit} ideals (stopped at {len(found)}, of up to "
                f"{len(groups)} sizes {found[-1].bit_count()} was reached): use order_dp, chain_dp or milp"
            )
        if expired():
            raise LimitError(f"the time limit came while ideals were enumerated ({len(found)} so far): use order_dp")
        level = _next_level(groups, level, limit - len(found))
    return tuple(found)


def _next_level(groups: Groups, level: dict[int, int], room: int) -> dict[int, int]:
    """Ideals that are one group larger, each with what can be added to it; stops early beyond `room`."""
    larger: dict[int, int] = {}
    for ideal, addable in level.items():
        for g in bits(addable):
            grown = ideal | 1 << g
            if grown not in larger:
                new = set_of(h for h in bits(groups.after[g]) if not groups.before[h] & ~grown)
                larger[grown] = addable ^ 1 << g | new
        if len(larger) > room:
            break
    return larger


def _joined(count: int, sets: Iterable[Sequence[int]]) -> list[int]:
    """For every layer the smallest layer that it is joined with (union-find with path halving)."""
    owner = list(range(count))

    def find(layer: int) -> int:
        while owner[layer] != layer:
            owner[layer] = owner[owner[layer]]
            layer = owner[layer]
        return layer

    for members in sets:
        for other in members[1:]:
            low, high = sorted((find(members[0]), find(other)))
            owner[high] = low
    return [find(layer) for layer in range(count)]


def strong_components(after: dict[int, set[int]]) -> list[list[int]]:
    """Strongly connected components of a graph in topological order (Kosaraju: by finish times, then reversed)."""
    before: dict[int, set[int]] = {node: set() for node in after}
    for node, following in after.items():
        for other in following:
            before[other].add(node)
    order = _finish_order(after, sorted(after))[::-1]
    seen: set[int] = set()
    return [part for node in order if (part := _finish_order(before, [node], seen))]


def _finish_order(after: dict[int, set[int]], starts: Iterable[int], seen: set[int] | None = None) -> list[int]:
    """Nodes in the order in which a depth-first search leaves them; `seen` nodes are not entered."""
    entered: set[int] = set() if seen is None else seen
    left: list[int] = []
    for start in starts:
        path = [] if start in entered else [(start, iter(sorted(after[start])))]
        entered.add(start)
        while path:
            fresh = next((other for other in path[-1][1] if other not in entered), None)
            if fresh is None:
                left.append(path.pop()[0])
            else:
                entered.add(fresh)
                path.append((fresh, iter(sorted(after[fresh]))))
    return left


def _groups(index: GraphIndex, group_of: list[int]) -> Groups:
    count = max(group_of, default=-1) + 1
    layers: list[list[int]] = [[] for _ in range(count)]
    before, after = [0] * count, [0] * count
    for layer, g in enumerate(group_of):
        layers[g].append(layer)
        for other in index.successors[layer]:
            if group_of[other] != g:
                after[g] |= 1 << group_of[other]
                before[group_of[other]] |= 1 << g
    return Groups(
        layers=tuple(tuple(members) for members in layers),
        of_layer=tuple(group_of),
        before=tuple(before),
        after=tuple(after),
    )
