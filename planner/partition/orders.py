"""Topological orders of groups, of many kinds: their prefixes are the pool of ideals for upper bounds."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from planner.ideals import Groups, bits
from planner.partition.instance import BottleneckInstance


def topological_orders(instance: BottleneckInstance, seed: int, num_random: int) -> Iterator[list[int]]:
    """Orders by number, by level from either end, depth first, by the smallest cut, and random ones of three kinds."""
    groups = instance.groups
    count = len(groups)
    early, late = levels(groups), latest_levels(groups)
    yield list(range(count))
    yield by_key(groups, lambda g: (early[g], g))
    yield by_key(groups, lambda g: (late[g], g))
    yield depth_first(groups, list(range(count)))
    yield depth_first(groups, [-g for g in range(count)])
    yield smallest_cut(instance, random.Random(seed), 0.0)
    draw = random.Random(seed)
    for number in range(num_random):
        if number % 3 == 0:
            yield depth_first(groups, draw.sample(range(count), count))
        elif number % 3 == 1:
            yield smallest_cut(instance, draw, 0.2)
        else:
            yield by_key(groups, [level + draw.uniform(-2, 2) for level in early].__getitem__)


def prefixes(order: Sequence[int]) -> list[int]:
    """The ideals that the order runs through, without the empty one."""
    ideal, found = 0, []
    for g in order:
        ideal |= 1 << g
        found.append(ideal)
    return found


def by_key(groups: Groups, key: Callable[[int], Any]) -> list[int]:
    """Of all groups whose inputs are placed, always the one with the smallest key next."""
    waiting = [before.bit_count() for before in groups.before]
    ready = [(key(g), g) for g, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, g = heapq.heappop(ready)
        order.append(g)
        for other in bits(groups.after[g]):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (key(other), other))
    return order


def depth_first(groups: Groups, rank: Sequence[int]) -> list[int]:
    """Of all groups whose inputs are placed, the one that became ready last (ties by rank) next: branch by branch."""
    waiting = [before.bit_count() for before in groups.before]
    stack = sorted((g for g, count in enumerate(waiting) if not count), key=lambda g: rank[g], reverse=True)
    order = []
    while stack:
        g = stack.pop()
        order.append(g)
        ready = []
        for other in bits(groups.after[g]):
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
        stack += sorted(ready, key=lambda g: rank[g], reverse=True)
    return order


def smallest_cut(instance: BottleneckInstance, draw: random.Random, noise: float) -> list[int]:
    """Of all groups whose inputs are placed, the one after which the cut tensors cost least (times 1 +- noise) next."""
    groups = instance.groups
    cuts = [(cut.cost_s, cut.groups) for cut in instance.cuts]
    of: list[list[int]] = [[] for _ in range(len(groups))]
    for number, (_, members) in enumerate(cuts):
        for g in bits(members):
            of[g].append(number)
    waiting = [before.bit_count() for before in groups.before]
    ready = {g for g, count in enumerate(waiting) if not count}
    outside = [members.bit_count() for _, members in cuts]
    whole = list(outside)

    def change(g: int) -> float:
        opened = sum(cuts[h][0] for h in of[g] if outside[h] == whole[h])
        closed = sum(cuts[h][0] for h in of[g] if outside[h] == 1)
        return (opened - closed) * (1 + draw.uniform(-noise, noise))

    order = []
    while ready:
        g = min(sorted(ready), key=change)
        ready.discard(g)
        order.append(g)
        for h in of[g]:
            outside[h] -= 1
        for other in bits(groups.after[g]):
            waiting[other] -= 1
            if not waiting[other]:
                ready.add(other)
    return order


def within_stages(groups: Groups, stages: Sequence[int], key: Callable[[int], Any]) -> list[int]:
    """An order that runs through the given stages, by key inside each: its prefixes hold their boundaries."""
    stage_of = [0] * len(groups)
    for number, stage in enumerate(stages):
        for g in bits(stage):
            stage_of[g] = number
    return by_key(groups, lambda g: (stage_of[g], key(g)))


def levels(groups: Groups) -> list[int]:
    """Groups on the longest path before each group."""
    found = [0] * len(groups)
    for g in by_key(groups, lambda g: g):
        found[g] = max((found[p] + 1 for p in bits(groups.before[g])), default=0)
    return found


def latest_levels(groups: Groups) -> list[int]:
    """The latest level that each group can have without making the longest path longer."""
    order = by_key(groups, lambda g: g)
    last = max(levels(groups), default=0)
    found = [last] * len(groups)
    for g in reversed(order):
        found[g] = min((found[s] - 1 for s in bits(groups.after[g])), default=last)
    return found
