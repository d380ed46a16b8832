"""A partition instance that can be contracted step by step; `planner.partition.contraction` holds the rules.

Nodes are numbered like the groups that they start from. A node stands for the original groups in its `members`; a node
that is gone was merged into another one or deleted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from itertools import chain

from planner.ideals import Groups, bits, set_of, strong_components
from planner.partition.instance import BottleneckInstance, Cut, joined


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A node of no cost that was deleted: its groups and those next to it at that time, bitsets of original groups."""

    members: int
    before: int
    after: int


class Hypergraph:
    """Nodes with sums, precedence as neighbour sets without transitive edges, tensors as pin sets."""

    def __init__(self, instance: BottleneckInstance) -> None:
        groups = instance.groups
        count = len(groups)
        self.instance = instance
        self.members = [1 << g for g in range(count)]
        self.alive = set(range(count))
        self.before = [set(bits(others)) for others in groups.before]
        self.after = [set(bits(others)) for others in groups.after]
        self.work: list[list[float]] = [list(entry.work_s) for entry in instance.classes]
        self.size: list[list[int]] = [list(entry.size_bytes) for entry in instance.classes]
        self.cuts = list(instance.cuts)
        self.pins = [set(bits(cut.groups)) for cut in instance.cuts]
        self.of: list[set[int]] = [set() for _ in range(count)]
        for number, pins in enumerate(self.pins):
            for node in pins:
                self.of[node].add(number)
        self.deleted: list[Deleted] = []

    def work_of(self, node: int, c: int) -> float:
        """Seconds of the node on class c."""
        return self.work[c][node]

    def runs(self, node: int, c: int) -> bool:
        """Whether class c can run the node."""
        return math.isfinite(self.work[c][node])

    def merge(self, a: int, into: int) -> set[int]:
        """Join node `a` with another one; returns the nodes whose surroundings changed."""
        b, touched = into, self.before[a] | self.after[a]
        self.members[b] |= self.members[a]
        for seconds in self.work:
            seconds[b] += seconds[a]
        for num_bytes in self.size:
            num_bytes[b] += num_bytes[a]
        self._reconnect(a, b)
        for number in sorted(self.of[a]):
            touched |= self.pins[number]
            self.pins[number].discard(a)
            self.pins[number].add(b)
            self.of[b].add(number)
            self._drop_if_whole(number)
        self._bury(a)
        return (touched | self.before[b] | self.after[b] | {b}) & self.alive

    def delete(self, a: int) -> set[int]:
        """Take out a node without tensors; its neighbours are joined by precedence and returned."""
        assert not self.of[a]
        before, after = self.before[a], self.after[a]
        self.deleted.append(Deleted(members=self.members[a], before=self._groups(before), after=self._groups(after)))
        for p in before:
            self.after[p] |= after
        for s in after:
            self.before[s] |= before
        touched = before | after
        self._bury(a)
        return touched

    def unpin(self, number: int, a: int) -> None:
        """Node `a` no longer counts for the tensor."""
        self.pins[number].discard(a)
        self.of[a].discard(number)
        self._drop_if_whole(number)

    def fuse_loops(self) -> None:
        """Join everything that lies on a cycle of precedence: it can only be in one stage."""
        order = sorted(self.alive)
        for loop in strong_components({node: self.after[node] for node in order}):
            first, *others = sorted(loop)
            for node in others:
                self.merge(node, first)

    def reduce(self) -> None:
        """Drop precedence that follows from other precedence. O(edges) operations on bitsets."""
        above = dict.fromkeys(self.alive, 0)
        for node in self._sorted():
            implied = 0
            for p in self.before[node]:
                implied |= above[p]
            for p in [p for p in self.before[node] if implied >> p & 1]:
                self.before[node].discard(p)
                self.after[p].discard(node)
            above[node] = implied | set_of(self.before[node])

    def _sorted(self) -> list[int]:
        """A topological order (Kahn)."""
        missing = {node: len(self.before[node]) for node in self.alive}
        order = sorted(node for node, count in missing.items() if not count)
        for node in order:  # grows
            for other in self.after[node]:
                missing[other] -= 1
                if not missing[other]:
                    order.append(other)
        return order

    def contracted(self, *, keep_memory: bool) -> tuple[BottleneckInstance, tuple[int, ...]]:
        """The instance of what is left, in topological order, and the original groups of each new group."""
        order = [node for (node,) in strong_components({node: self.after[node] for node in sorted(self.alive)})]
        new = {node: g for g, node in enumerate(order)}
        instance = dataclasses.replace(
            self.instance,
            groups=self._new_groups(order, new),
            cuts=self._new_cuts(new, keep_memory),
            classes=tuple(
                dataclasses.replace(
                    entry,
                    work_s=[self.work[c][node] for node in order],
                    size_bytes=[self.size[c][node] if keep_memory else 0 for node in order],
                )
                for c, entry in enumerate(self.instance.classes)
            ),
        )
        return instance, tuple(self.members[node] for node in order)

    def _new_groups(self, order: list[int], new: dict[int, int]) -> Groups:
        old = self.instance.groups
        layers = tuple(old.positions(self.members[node]) for node in order)
        of_layer = [-1] * len(old.of_layer)
        for g, positions in enumerate(layers):
            for position in positions:
                of_layer[position] = g
        return Groups(
            layers=layers,
            of_layer=tuple(of_layer),
            before=tuple(set_of(new[p] for p in self.before[node]) for node in order),
            after=tuple(set_of(new[s] for s in self.after[node]) for node in order),
        )

    def _new_cuts(self, new: dict[int, int], keep_memory: bool) -> tuple[Cut, ...]:
        made: dict[int, Cut] = {}
        for cut, pins in zip(self.cuts, self.pins, strict=True):
            if not pins:
                continue
            ends = set_of(new[node] for node in pins)
            held = (cut.received_bytes, cut.returned_bytes) if keep_memory else (0, 0)
            here = Cut(groups=ends, cost_s=cut.cost_s, received_bytes=held[0], returned_bytes=held[1])
            made[ends] = joined(made[ends], here) if ends in made else here
        return tuple(made.values())

    def _reconnect(self, a: int, b: int) -> None:
        """Give b the neighbours of a."""
        for p in self.before[a]:
            self.after[p].discard(a)
            if p != b:
                self.after[p].add(b)
                self.before[b].add(p)
        for s in self.after[a]:
            self.before[s].discard(a)
            if s != b:
                self.before[s].add(b)
                self.after[b].add(s)
        self.before[a], self.after[a] = set(), set()

    def _drop_if_whole(self, number: int) -> None:
        """A tensor with one pin is never cut."""
        if len(self.pins[number]) == 1:
            self.of[self.pins[number].pop()].discard(number)

    def _bury(self, a: int) -> None:
        for p in self.before[a]:
            self.after[p].discard(a)
        for s in self.after[a]:
            self.before[s].discard(a)
        self.before[a], self.after[a], self.of[a] = set(), set(), set()
        self.alive.discard(a)

    def _groups(self, nodes: Iterable[int]) -> int:
        return set_of(chain.from_iterable(bits(self.members[node]) for node in nodes))
