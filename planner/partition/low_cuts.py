"""Ideals that cut little: a beam through the lattice of ideals, for pools of candidates.

From one ideal to a larger one, group by group; of all ideals of one size that are reached, only those with the smallest
cost of cut tensors are kept. Boundaries of good partitions cut little, and ideals of a beam have common ancestors, so
that many contain each other: a pool of them is worth more than as many prefixes of unrelated orders.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from planner.ideals import Groups, bits, set_of
from planner.partition.instance import BottleneckInstance


def low_cuts(
    instance: BottleneckInstance,
    start: int,
    end: int,
    width: int,
    *,
    draw: random.Random,
    noise: float = 0.0,
    expired: Callable[[], bool] = lambda: False,
) -> set[int]:
    """Up to `width` ideals of each size between two ideals, where each cost counts times 1 +- `noise`.

    Ties break by value: same random numbers, same ideals. O(size x width x groups that can be added x their tensors).
    """
    steps = _Steps(instance, end, [cut.cost_s * (1 + draw.uniform(-noise, noise)) for cut in instance.cuts])
    level = {start: (0.0, set_of(g for g in bits(end & ~start) if not instance.groups.before[g] & ~start))}
    found: set[int] = set()
    while level and not expired():
        found.update(level)
        larger: dict[int, tuple[float, int]] = {}
        for ideal, (cost, addable) in level.items():
            for g in bits(addable):
                if ideal | 1 << g not in larger:
                    larger[ideal | 1 << g] = (cost + steps.change(ideal, g), steps.addable(ideal, addable, g))
        level = dict(heapq.nsmallest(width, larger.items(), key=lambda item: (item[1][0], item[0])))
    return found


class _Steps:
    """What one more group changes: the cost of cut tensors, and what can be added next."""

    def __init__(self, instance: BottleneckInstance, end: int, costs: list[float]) -> None:
        self.groups: Groups = instance.groups
        self.end = end
        self.cuts: list[list[tuple[float, int]]] = [[] for _ in range(len(instance.groups))]
        for cost, cut in zip(costs, instance.cuts, strict=True):
            for g in bits(cut.groups):
                self.cuts[g].append((cost, cut.groups))

    def change(self, ideal: int, g: int) -> float:
        """Cost of the tensors that are cut from then on, less that of those that are whole."""
        grown, change = ideal | 1 << g, 0.0
        for cost, members in self.cuts[g]:
            if not members & ideal:
                change += cost
            if not members & ~grown:
                change -= cost
        return change

    def addable(self, ideal: int, addable: int, g: int) -> int:
        """The groups that can be added once g is."""
        grown, left = ideal | 1 << g, addable & ~(1 << g)
        for other in bits(self.groups.after[g] & self.end):
            if not self.groups.before[other] & ~grown:
                left |= 1 << other
        return left
