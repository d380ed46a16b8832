"""Windows: how many stages an ideal needs on either side, in any partition with a bottleneck below T.

Let X(I) be the cost of the tensors that ideal I cuts and w(I) its work, least over the classes that pay transfers. If I
is a boundary, each of these tensors is cut by a stage before it and by a stage after it. When all stages on a side pay
transfers, their loads add up to at least work plus X there, so that with a stages before and b stages after

    ceil( (w(I) + X(I)) / T ) <= a      and      ceil( (W - w(I) + X(I)) / T ) <= b,      W the work of everything.

Devices that pay no transfers (CPUs): on a side that may hold r > 0 of them X does not count, and they take over work
w_g at the price of their own time. No more than G(r T) of it fits, the fractional knapsack of w by that time; the other
stages of the side carry the rest: ceil( (w(I) - G(r T)) / T ) and ceil( (W - w(I) - G(r T)) / T ).

An ideal is alive when for some split of these devices between the sides the stages suffice. Every stage has a fixed
overhead besides, so T is what is left of the bottleneck.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.partition.instance import BottleneckInstance

Array = NDArray[Any]
SLACK = 1e-9
"""Share of a stage by which a sum may be over before it counts as one stage more: sums are rounded."""


class Windows:
    """Stages needed before and after ideals, for partitions with a bottleneck below `below`."""

    def __init__(self, instance: BottleneckInstance, below: float) -> None:
        paying = [entry for entry in instance.classes if entry.count and entry.pays]
        free = [entry for entry in instance.classes if entry.count and not entry.pays]
        self.num_free = sum(entry.count for entry in free)
        self.num_paying = min(sum(entry.count for entry in paying), instance.most_stages)
        count = len(instance.groups)
        self.work_s = _least([entry.work_s for entry in paying], count)
        self.stage_s = below - min((entry.overhead_s for entry in paying), default=0.0)
        taken = np.min([entry.work_s for entry in free], axis=0) if free else np.full(count, math.inf)
        room = below - min((entry.overhead_s for entry in free), default=0.0)
        self.taken_s = [0.0, *(_knapsack(self.work_s, taken, r * room) for r in range(1, self.num_free + 1))]

    def before(self, work: Array, crossing: Array) -> Array:
        """Paying stages that the ideals need, by number of free devices among their stages: (free + 1, ideals)."""
        return self._needed(work, crossing)

    def after(self, work: Array, crossing: Array) -> Array:
        """Paying stages that the rest needs, by number of free devices left for it: (free + 1, ideals)."""
        return self._needed(np.sum(self.work_s) - work, crossing)

    def alive(self, work: Array, crossing: Array) -> Array:
        """Whether each ideal, of work w and crossing cost X, can be a boundary at all."""
        needed = self.before(work, crossing) + self.after(work, crossing)[::-1]
        return np.asarray((needed <= self.num_paying).any(axis=0), dtype=bool)

    def _needed(self, work: Array, crossing: Array) -> Array:
        """Row r: stages for work with r free devices helping; all of one length stage_s."""
        loads = [work + crossing, *(np.maximum(work - taken, 0.0) for taken in self.taken_s[1:])]
        if math.isinf(self.stage_s):
            return np.zeros((len(loads), len(work)))
        if self.stage_s <= 0:
            return np.where(np.array(loads) > 0, math.inf, 0.0)
        return np.ceil(np.array(loads) / self.stage_s - SLACK)


def _least(rows: list[Any], count: int) -> Array:
    """Per group the least seconds over some classes, 0 where none runs it (it is then left to the others)."""
    least = np.min(rows, axis=0) if rows else np.full(count, math.inf)
    return np.where(np.isfinite(least), least, 0.0)


def _knapsack(value: Array, weight: Array, room: float) -> float:
    """The most value of fractions of things with a total weight of at most `room`; infinite weights stay out."""
    if room <= 0:
        return float(np.sum(value[weight <= 0])) if room == 0 else 0.0
    things = sorted((w / v if v else math.inf, w, v) for v, w in zip(value.tolist(), weight.tolist(), strict=True))
    total = 0.0
    for _, w, v in things:
        if not math.isfinite(w) or not v:
            continue
        part = 1.0 if w <= room else room / w
        total += part * v
        room -= part * w
        if room <= 0:
            break
    return total
