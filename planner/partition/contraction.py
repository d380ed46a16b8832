"""Contractions that keep an optimal partition: the same problem with fewer groups.

Each rule is proven by moving one node and watching the stages whose load can change. Costs of hyperedges (tensors) are
written c_h; f is the load of a stage. A rule must hold on every device class that could hold the node afterwards, so
`w_a` below is read per class; a node that a class cannot run has infinite work there.

R1, join `a` with its only successor b (or only predecessor b), when

    w_a + sum of c_h over h with a but not b  <=  sum of c_h over h = {a, b}

    (on classes that pay no transfers: w_a = 0). Take any partition with a in stage i and b in stage j != i, and move a
    to j. Stage j gains w_a, may now cut the tensors of the left side, and no longer cuts {a, b}; tensors with both a
    and b were cut by j already. Stage i loses w_a and {a, b} and gains at most the left side's tensors. No other stage
    holds a before or after. b is the only neighbour on its side, so precedence holds; other successors of a that come
    after b (transitive ones) are no neighbours.
R2, take `a` off its tensor, when a is a source without work whose every tensor is {a} + its successors. A stage that
    cuts what is left of a tensor cuts the whole, so no partition becomes worse; and with a in the stage of its earliest
    reader every stage cuts the tensor exactly if it cuts the rest: other stages lack that reader and a alike.
R3, delete a node without work and tensors; its inputs precede its outputs. It goes to the stage of its last input
    (of its earliest output, for a source), where it costs nothing.
R4, only for partitions with a bottleneck below T: join all pins of h when every partition that cuts h has a stage with
    a load of T or more. That is so when some v in h has w_v + c_h >= T on every class that runs v (v's stage cuts h
    and pays); or when at most one device pays no transfers and w_u + c_h >= T for all u in h (two stages cut h, one of
    them pays). What then lies on a cycle of precedence can only be in one stage, and is joined too.

R1 to R3 move nodes between stages: with `keep_memory` they apply to nodes that hold no bytes. Without it the contracted
instance has no sizes at all: it is the relaxation without memory, and whoever uses its plan checks memory on layers.
They can also empty a stage: with a fixed number of stages only R4 applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.ideals import bits
from planner.partition._hypergraph import Deleted, Hypergraph
from planner.partition.instance import BottleneckInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A smaller instance with the same optimum (below a bound: with the same partitions below it that matter).

    `members[g]` are the original groups of its group g, as a bitset; `deleted` those in none, in order of deletion.
    In `instance.groups`, `of_layer` is -1 for layers of deleted groups.
    """

    instance: BottleneckInstance
    members: tuple[int, ...]
    deleted: tuple[Deleted, ...] = ()

    def expand(self, stages: Sequence[int]) -> tuple[int, ...]:
        """Stages over original groups (bitsets, in order) with the loads of these stages over contracted groups.

        Deleted groups come back in reverse order, each where R2 and R3 say: its neighbours are in place by then.
        """
        whole = [0] * len(stages)
        for number, stage in enumerate(stages):
            for g in bits(stage):
                whole[number] |= self.members[g]
        for gone in reversed(self.deleted):
            whole[_home(gone, whole)] |= gone.members
        return tuple(whole)


def contract(
    instance: BottleneckInstance,
    *,
    below: float | None = None,
    keep_memory: bool,
    expired: Callable[[], bool] = lambda: False,
) -> Contraction:
    """Apply R1 to R3, and R4 for partitions with a bottleneck below `below`, until nothing changes.

    Without `below` the optimum is unchanged. With it, a partition of the original below `below` exists exactly if one
    of the contraction does, and the smallest value below it is the same. When `expired()` no further rule is tried.
    O(rounds x edges x groups / 64).
    """
    graph = Hypergraph(instance)
    rules = _Rules(graph, keep_memory, expired)
    graph.reduce()
    while True:
        changed = rules.join_costly_pins(below) if below is not None else False
        if instance.num_stages is None:
            changed |= rules.move_nodes()
        if not changed:
            break
        graph.reduce()
    smaller, members = graph.contracted(keep_memory=keep_memory)
    return Contraction(instance=smaller, members=members, deleted=tuple(graph.deleted))


class _Rules:
    """The rules on one hypergraph; each returns whether it changed anything."""

    def __init__(self, graph: Hypergraph, keep_memory: bool, expired: Callable[[], bool]) -> None:
        self.graph, self.keep_memory, self.expired = graph, keep_memory, expired
        used = [c for c, entry in enumerate(graph.instance.classes) if entry.count]
        self.paying = [c for c in used if graph.instance.classes[c].pays]
        self.free = [c for c in used if not graph.instance.classes[c].pays]

    def move_nodes(self) -> bool:
        """R1 to R3 on every node, and again on those whose neighbourhood changed."""
        waiting, changed = sorted(self.graph.alive), False
        while waiting:
            again: set[int] = set()
            for number, a in enumerate(waiting):
                if number % 256 == 0 and self.expired():
                    return changed
                if a in self.graph.alive and len(self.graph.alive) > 1:
                    again |= self._move(a)
            changed |= bool(again)
            waiting = sorted(again & self.graph.alive)
        return changed

    def join_costly_pins(self, below: float) -> bool:
        """R4, with the loops that it makes, until no tensor is costly."""
        changed = False
        while self._join_all(below):
            self.graph.fuse_loops()
            changed = True
        if changed:
            self.graph.reduce()
        return changed

    def _join_all(self, below: float) -> bool:
        """R4 on every tensor, and again on those of nodes that became heavier."""
        graph, changed = self.graph, False
        waiting = list(range(len(graph.pins)))
        while waiting:
            again: set[int] = set()
            for number in waiting:
                if graph.pins[number] and self._must_stay_whole(number, below):
                    again |= self._join(number)
            changed |= bool(again)
            waiting = sorted(again)
        return changed

    def _join(self, number: int) -> set[int]:
        """Join the pins of a tensor; returns it and the tensors of the node that they are then."""
        first, *others = sorted(self.graph.pins[number])
        for node in others:
            self.graph.merge(node, first)
        return {number, *self.graph.of[first]}

    def _move(self, a: int) -> set[int]:
        """The first rule that fits node a; returns the nodes to look at again."""
        graph = self.graph
        if not self._holds_nothing(a):
            return set()
        for neighbours in (graph.after[a], graph.before[a]):
            if len(neighbours) == 1:
                (b,) = neighbours
                if self._joins(a, b):
                    return graph.merge(a, b)
        if any(graph.work_of(a, c) for c in (*self.paying, *self.free)):
            return set()
        return self._vanish(a)

    def _vanish(self, a: int) -> set[int]:
        """R2 and R3 for a node without work."""
        graph = self.graph
        around = graph.after[a] | {a}
        if graph.of[a] and not graph.before[a] and all(graph.pins[h] == around for h in graph.of[a]):
            for number in sorted(graph.of[a]):
                graph.unpin(number, a)
        return graph.delete(a) if not graph.of[a] else set()

    def _holds_nothing(self, a: int) -> bool:
        """Whether moving the node moves no bytes, where bytes matter."""
        if not self.keep_memory:
            return True
        cuts = [self.graph.cuts[h] for h in self.graph.of[a]]
        return not any(sizes[a] for sizes in self.graph.size) and not any(
            cut.received_bytes or cut.returned_bytes for cut in cuts
        )

    def _joins(self, a: int, b: int) -> bool:
        """The condition of R1 on every class that b may run on."""
        graph = self.graph
        foreign = sum(graph.cuts[h].cost_s for h in sorted(graph.of[a]) if b not in graph.pins[h])
        inner = sum(graph.cuts[h].cost_s for h in sorted(graph.of[a]) if graph.pins[h] == {a, b})
        if self.paying and foreign > inner:
            return False
        fits = [graph.work_of(a, c) + foreign <= inner for c in self.paying if graph.runs(b, c)]
        return all(fits) and not any(graph.work_of(a, c) for c in self.free if graph.runs(b, c))

    def _must_stay_whole(self, number: int, below: float) -> bool:
        """The condition of R4 on tensor `number`."""
        pins, cost = self.graph.pins[number], self.graph.cuts[number].cost_s
        if any(not self._may_be_free(v) and self._least_s(v) + cost >= below for v in pins):
            return True
        num_free = sum(self.graph.instance.classes[c].count for c in self.free)
        return num_free <= 1 and all(self._least_s(u) + cost >= below for u in pins)

    def _may_be_free(self, node: int) -> bool:
        return any(self.graph.runs(node, c) for c in self.free)

    def _least_s(self, node: int) -> float:
        """Work and overhead of a node on the paying class that is quickest with it; infinite where none runs it."""
        classes = self.graph.instance.classes
        return min((self.graph.work_of(node, c) + classes[c].overhead_s for c in self.paying), default=math.inf)


def _home(gone: Deleted, stages: Sequence[int]) -> int:
    """The stage of the last input, else of the first output, else the first stage."""
    if gone.before:
        return max(number for number, stage in enumerate(stages) if stage & gone.before)
    return next((number for number, stage in enumerate(stages) if stage & gone.after), 0)
