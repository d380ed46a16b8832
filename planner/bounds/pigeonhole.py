"""The pigeonhole bound: of many heavy groups, several share a stage.

Theorem. Let w_1 >= w_2 >= ... be the least work of the groups on any device class, k the number of stages. For every h,
the bottleneck is at least w_(kh+1) + the h values before it.

Proof. Of the kh + 1 heaviest groups some stage holds at least h + 1, and these weigh no less than the h + 1 lightest
of them. (h = 0: the heaviest group.) Together with the average: all work spread over all devices; a device that pays no
transfers counts with its own speed. The least overhead of a stage is added.
"""

from __future__ import annotations

import math

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import ROUNDING, blocks_of, last_refuted, least_work
from planner.bounds._budget import Budget
from planner.bounds.base import BOUNDS, BoundQuery
from planner.partition.instance import BottleneckInstance

BISECTIONS = 60


def pigeonhole(instance: BottleneckInstance, upper: float = math.inf, budget: Budget | None = None) -> float:
    """The best h, in seconds, at most `upper`; infinite work (no device runs a group) gives `upper`. O(n log n)."""
    work = sorted(least_work(instance), reverse=True)
    most = instance.most_stages
    best = 0.0
    for h in range((len(work) - 1) // most + 1 if work and most else 0):
        last = most * h
        best = max(best, math.fsum(work[last - h : last + 1]))
    overhead = min((entry.overhead_s for entry in instance.classes if entry.count), default=0.0)
    return min(upper, (best + overhead) * (1 - ROUNDING)) if work else 0.0


def average(instance: BottleneckInstance, upper: float = math.inf, budget: Budget | None = None) -> float:
    """All work spread over all devices, in seconds, at most `upper`: the largest T at which stages cannot hold it."""
    blocks = blocks_of(instance)
    least = least_work(instance)
    weights = [work if math.isfinite(work) else other for work, other in zip(blocks.work, least, strict=True)]
    top = min(upper, math.fsum(least) + max((entry.overhead_s for entry in instance.classes), default=0.0))
    if not math.isfinite(top):
        return 0.0

    def refuted(below: float) -> bool:
        need = blocks.need(weights, below)
        return need > 0 and need + blocks.overhead_s > below

    return last_refuted(refuted, 0.0, top, BISECTIONS)


@BOUNDS.register
class PigeonholeBound:
    """Of many heavy groups several share a stage; never less than the average work of the stages."""

    name = "pigeonhole"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only."""
        return throughput_bound(query, lambda *given: max(pigeonhole(*given), average(*given)), cheap=True)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
