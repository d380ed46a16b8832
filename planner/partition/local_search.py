"""Moving single groups between stages: what recurrences over few orders cannot do.

A group may go to any stage between the last of its inputs and the first of its readers. Only the two stages concerned
change their load. A move is taken when the larger load of the two falls, or stays and the smaller one falls; so the
sorted loads fall lexicographically and the search ends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from planner.ideals import bits
from planner.partition.instance import BottleneckInstance
from planner.partition.loads import Bottleneck, load_s, valued

LEAST_GAIN = 1e-12
"""Share of a load by which a move must pay, so that rounding makes no endless loop."""


class Stages:
    """A partition that is changed group by group. Classes of stages stay; memory is left to the caller."""

    def __init__(self, instance: BottleneckInstance, start: Bottleneck) -> None:
        self.instance = instance
        self.classes = [c for c, _ in start.stages]
        self.of = [0] * len(instance.groups)
        for number, (_, stage) in enumerate(start.stages):
            for g in bits(stage):
                self.of[g] = number
        self.load = [load_s(instance, c, stage) for c, stage in start.stages]
        self.before = [list(bits(others)) for others in instance.groups.before]
        self.after = [list(bits(others)) for others in instance.groups.after]
        self.pins = [list(bits(cut.groups)) for cut in instance.cuts]
        self.cuts_of: list[list[int]] = [[] for _ in self.of]
        self.held: list[dict[int, int]] = []
        for h, pins in enumerate(self.pins):
            self.held.append({})
            for g in pins:
                self.cuts_of[g].append(h)
                self.held[h][self.of[g]] = self.held[h].get(self.of[g], 0) + 1

    def room(self, g: int) -> tuple[int, int]:
        """The first and the last stage that the group may be in."""
        first = max((self.of[p] for p in self.before[g]), default=0)
        last = min((self.of[s] for s in self.after[g]), default=len(self.load) - 1)
        return first, last

    def loads_after(self, g: int, to: int) -> tuple[float, float]:
        """Loads of the group's stage and of stage `to`, were it there."""
        classes, old = self.instance.classes, self.of[g]
        a, b = classes[self.classes[old]], classes[self.classes[to]]
        left, joined = self.load[old] - a.work_s[g], self.load[to] + b.work_s[g]
        for h in self.cuts_of[g]:
            cost, here = self.instance.cuts[h].cost_s, self.held[h]
            whole, at_old, at_new = len(self.pins[h]), here[old], here.get(to, 0)
            if a.pays:
                left += cost * ((at_old > 1) - (at_old < whole))
            if b.pays:
                joined += cost * ((at_new + 1 < whole) - (at_new > 0))
        return left, joined

    def move(self, g: int, to: int) -> None:
        """Put the group into stage `to`."""
        old = self.of[g]
        self.load[old], self.load[to] = self.loads_after(g, to)
        for h in self.cuts_of[g]:
            here = self.held[h]
            here[old] -= 1
            here[to] = here.get(to, 0) + 1
        self.of[g] = to

    def restore(self, of: Sequence[int]) -> None:
        """Put every group back into the given stage."""
        for g, to in enumerate(of):
            if self.of[g] != to:
                self.move(g, to)

    def partition(self) -> Bottleneck | None:
        """The stages that are not empty, valued anew; None where the number of stages is fixed and one is empty."""
        sets = [0] * len(self.load)
        for g, number in enumerate(self.of):
            sets[number] |= 1 << g
        stages = [(c, stage) for c, stage in zip(self.classes, sets, strict=True) if stage]
        if self.instance.num_stages is not None and len(stages) != self.instance.num_stages:
            return None
        return valued(self.instance, stages)


def descend(stages: Stages, draw: random.Random, max_sweeps: int = 20) -> None:
    """Take moves that pay until there is none, groups in random order."""
    order = list(range(len(stages.of)))
    for _ in range(max_sweeps):
        draw.shuffle(order)
        if not sum(_improve(stages, g) for g in order):
            break


def kick(stages: Stages, draw: random.Random, num_moves: int) -> None:
    """Random moves around the heaviest stage: a group of it, or next to it, goes to a neighbouring stage."""
    worst = max(range(len(stages.load)), key=lambda s: stages.load[s])
    for _ in range(num_moves):
        near = [g for g, number in enumerate(stages.of) if abs(number - worst) <= 1]
        if not near:
            break
        g = draw.choice(near)
        first, last = stages.room(g)
        to = min(max(stages.of[g] + draw.choice((-1, 1)), first), last)
        if to != stages.of[g] and math.isfinite(stages.loads_after(g, to)[1]):
            stages.move(g, to)


def _improve(stages: Stages, g: int) -> bool:
    """The best move of one group, if any pays."""
    old = stages.of[g]
    first, last = stages.room(g)
    best, target = (0.0, 0.0), old
    for to in range(first, last + 1):
        if to == old:
            continue
        was = sorted((stages.load[old], stages.load[to]), reverse=True)
        now = sorted(stages.loads_after(g, to), reverse=True)
        gain = (was[0] - now[0], was[1] - now[1])
        if gain[0] < -LEAST_GAIN * was[0] or gain <= (LEAST_GAIN * was[0], LEAST_GAIN * was[0]):
            continue
        if gain > best:
            best, target = gain, to
    if target == old:
        return False
    stages.move(g, target)
    return True
