"""The recurrence over ideals where all devices are equal: only the number of stages matters.

Below a value T, an ideal is worth leaving only with the fewest stages that reach it: stages are the edges of a graph of
ideals, those with a load below T, and a breadth-first search finds a partition with a bottleneck below T or proves that
there is none. Its value is the next T, then T is bisected down to the least load of any partition.

A stage is priced once, when the ideal before it is first reached, and remembered if its load is below the best value
known by then: no later T is larger.
Ideals outside the windows of T (planner.partition.windows) are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.partition._lists import Array
from planner.partition.ideal_table import IdealTable
from planner.partition.instance import BottleneckInstance, simple_bound_s
from planner.partition.loads import Bottleneck, valued
from planner.partition.windows import Windows

MAX_STAGES_KEPT = 20_000_000
"""Stages that are remembered, 12 bytes each; further ones are priced anew at every T."""
CLOSE = 0.002
"""Relative distance at which bisection ends: from there on T is the value last found."""
EXACT = 1 - 1e-9
NOT_REACHED = 2**30

Edges = tuple[Array, Array]
"""Columns of larger ideals, and the load of the stage from some ideal to each."""


def applies(instance: BottleneckInstance) -> bool:
    """Whether all devices are equal and pay transfers, and there may be fewer stages than devices."""
    used = [entry for entry in instance.classes if entry.count]
    return len(used) == 1 and used[0].pays and instance.num_stages is None


class CountPass:
    """Searches over the ideals `alive` (the empty one and everything among them), for values below `below`."""

    def __init__(
        self, instance: BottleneckInstance, alive: list[int], below: float, expired: Callable[[], bool]
    ) -> None:
        self.instance, self.below = instance, below
        self.table = IdealTable(instance, alive, expired)
        (self.kind,) = (c for c, entry in enumerate(instance.classes) if entry.count)
        self.edges: list[Edges | None] = [None] * len(self.table)
        self.num_kept = 0

    def run(self, expired: Callable[[], bool]) -> tuple[Bottleneck | None, bool]:
        """The best partition below `below`, None if there is none; whether the search came to its end."""
        best, finished = self._below(self.below, expired)
        low = simple_bound_s(self.instance)
        while finished and best is not None and best.value_s > 0:
            last = low >= best.value_s * (1 - CLOSE)
            below = best.value_s * EXACT if last else (low + best.value_s) / 2
            found, finished = self._below(below, expired)
            if found is None and (last or not finished):
                break
            best, low = (found, low) if found else (best, below)
            self.below = min(self.below, best.value_s)
        return best, finished

    def _below(self, below: float, expired: Callable[[], bool]) -> tuple[Bottleneck | None, bool]:
        """A partition below `below`; None and True: there is none."""
        windows = Windows(self.instance, below)
        most = windows.num_paying
        sums = self.table.work[0], self.table.crossing
        latest = most - windows.after(*sums)[0]
        latest[windows.before(*sums)[0] > latest] = -1
        reached = np.full(len(self.table), NOT_REACHED)
        came = np.full(len(self.table), -1, dtype=np.int32)
        reached[0], frontier = 0, [0]
        for number in range(1, most + 1):
            sources, targets = self._leave(frontier, below, expired)
            if expired():
                return None, False
            fresh = (reached[targets] == NOT_REACHED) & (number <= latest[targets])
            new, first = np.unique(targets[fresh], return_index=True)
            if not new.size:
                break
            reached[new], came[new] = number, sources[fresh][first]
            if reached[-1] == number:
                return self._partition(came), True
            frontier = new.tolist()
        return None, True

    def _leave(self, frontier: list[int], below: float, expired: Callable[[], bool]) -> Edges:
        """All stages below `below` that begin after ideals of the frontier: their ends as columns."""
        edges = [self._priced(i) for n, i in enumerate(frontier) if n % 64 or not expired()]
        if len(edges) < len(frontier):
            return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
        sources = np.repeat(np.array(frontier, dtype=np.int32), [len(loads) for _, loads in edges])
        targets = np.concatenate([columns for columns, _ in edges])
        keep = np.concatenate([loads for _, loads in edges]) < below
        return sources[keep], targets[keep]

    def _priced(self, i: int) -> Edges:
        known = self.edges[i]
        if known is not None:
            return known
        columns, ((kept, seconds),) = self.table.after(i, self.below)
        priced = (columns[kept].astype(np.int32), seconds[kept])
        if self.num_kept < MAX_STAGES_KEPT:
            self.edges[i] = priced
            self.num_kept += len(kept)
        return priced

    def _partition(self, came: Array) -> Bottleneck:
        column, ideals = len(self.table) - 1, self.table.ideals
        stages: list[tuple[int, int]] = []
        while column:
            before = int(came[column])
            stages.append((self.kind, ideals[column] & ~ideals[before]))
            column = before
        return valued(self.instance, stages[::-1])
