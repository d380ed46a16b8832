"""The k-stage bound: all stages at once, as a MILP or its LP relaxation.

Theorem. The bottleneck is at least the smaller of T and the minimum of

    y[g,j] = 1: g is in stage j or an earlier one  (binary);    x[g,j] = y[g,j] - y[g,j-1],   y[g,0] = 0,  y[g,k] = 1
    y[g,j-1] <= y[g,j];    y[v,j] <= y[u,j]  for u -> v
    largest[h,j] >= x[g,j],  smallest[h,j] <= x[g,j]  for g in h
    min t    with    w x[.,j] + sum_h c_h (largest[h,j] - smallest[h,j]) <= t    for every stage j

    windows:  y[g,j] = 0 for j < ceil(w(g and ancestors) / T),  y[g,j] = 1 for j > k - ceil(w(g and descendants) / T)

Proof. Every partition of at most k stages is a solution with its loads (pad with empty stages). If its bottleneck is
below T, the stages up to that of g cost before(g) or more together and less than T each, so the windows hold; where
they leave a group no stage, T is refuted. The least overhead of a stage is added (of the stage with the largest load).

For instances where every device pays transfers; with free devices there is no such bound.

The smaller T, the narrower the windows and the larger the minimum. So the LP relaxation is solved for several T: where
its value is T or more, T is a bound (`relaxed_stages`). The MILP is solved once, at the value of the known plan.
"""

from __future__ import annotations

import math

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import Blocks, blocks_of
from planner.bounds._budget import Budget
from planner.bounds._linear import Linear, interior, mip_bound
from planner.bounds._sides import Sides, applies, sides_of
from planner.bounds.base import BOUNDS, BoundQuery
from planner.ideals import bits
from planner.partition.instance import BottleneckInstance

MOST = 4.0
"""A bottleneck of so many T is looked at: finite, so that duals prove something, and above all values of interest."""
BISECTIONS = 16
CLOSE = 0.003
"""Relative distance at which the bisection ends."""
MAX_BINARIES = 20_000
"""Larger models take too long to build."""


def stages(instance: BottleneckInstance, upper: float, budget: Budget, *, sides: Sides | None = None) -> float:
    """By the MILP, in seconds, at most `upper`; 0 when nothing is proven. `sides`: if they are known already."""
    blocks = blocks_of(instance)
    if not _applies(blocks, upper):
        return 0.0
    windows = (sides or sides_of(blocks, budget)).windows(upper)
    if any(first > last for first, last in windows):
        return upper
    found = mip_bound(StagesModel(blocks, upper, windows, most=1.0).linear, budget)
    return 0.0 if found is None else max(0.0, min(upper, blocks.overhead_s + found * upper))


def relaxed_stages(
    instance: BottleneckInstance, upper: float, budget: Budget, *, known: float = 0.0, sides: Sides | None = None
) -> float:
    """By LPs, in seconds, at most `upper`: the largest value or refuted T of a bisection from `known` to `upper`."""
    blocks = blocks_of(instance)
    if not _applies(blocks, upper):
        return known
    sides = sides or sides_of(blocks, budget)
    low, high, below = known, upper, upper
    for _ in range(BISECTIONS):
        if budget.expired():
            break
        value = _relaxed(blocks, sides, below, budget)
        low = max(low, min(below, value))
        high = high if value >= below else below
        if high <= low * (1 + CLOSE):
            break
        below = (low + high) / 2
    return low


def _relaxed(blocks: Blocks, sides: Sides, below: float, budget: Budget) -> float:
    """The LP at T = `below`; infinite when it is refuted."""
    windows = sides.windows(below)
    if any(first > last for first, last in windows):
        return math.inf
    model = StagesModel(blocks, below, windows, most=MOST)
    return blocks.overhead_s + max(0.0, interior(model.linear, budget, budget.left_s()).bound) * below


def _applies(blocks: Blocks, upper: float) -> bool:
    return applies(blocks) and math.isfinite(upper) and blocks.num_paying * len(blocks) <= MAX_BINARIES


class StagesModel:
    """The model in units of T, with a bottleneck up to `most`; `linear.integer` are the y, many fixed by windows."""

    def __init__(self, blocks: Blocks, below: float, windows: list[tuple[int, int]], most: float) -> None:
        self.blocks, self.below, self.linear = blocks, below, Linear()
        self.bottleneck = self.linear.add(1.0, high=most)
        self.windows = windows
        self.prefix = [[self._prefix(g, j) for j in range(blocks.num_paying + 1)] for g in range(len(blocks))]
        for g in range(len(blocks)):
            self._order(g)
        for j in range(1, blocks.num_paying + 1):
            self._load(j)

    def _prefix(self, g: int, j: int) -> int:
        first, last = self.windows[g]
        known = 0.0 if j < first else 1.0 if j >= last else None
        if known is None:
            return self.linear.add(integer=True)
        return self.linear.add(low=known, high=known)

    def _order(self, g: int) -> None:
        for j in range(1, self.blocks.num_paying + 1):
            self.linear.row([(self.prefix[g][j - 1], 1.0), (self.prefix[g][j], -1.0)], high=0.0)
            for u in bits(self.blocks.before[g]):
                self.linear.row([(self.prefix[g][j], 1.0), (self.prefix[u][j], -1.0)], high=0.0)

    def _load(self, j: int) -> None:
        """Stage j costs at most t."""
        blocks, terms = self.blocks, [(self.bottleneck, -1.0)]
        for g, work in enumerate(blocks.work):
            terms += [(column, sign * work / self.below) for column, sign in self._share(g, j)]
        for ends, price in blocks.cuts:
            if all(not self.windows[g][0] <= j <= self.windows[g][1] for g in ends):
                continue
            largest, smallest = self.linear.add(), self.linear.add()
            terms += [(largest, price / self.below), (smallest, -price / self.below)]
            for g in ends:
                minus = [(column, -sign) for column, sign in self._share(g, j)]
                self.linear.row([(largest, 1.0), *minus], low=0.0)
                self.linear.row([(smallest, 1.0), *minus], high=0.0)
        self.linear.row(terms, high=0.0)

    def _share(self, g: int, j: int) -> list[tuple[int, float]]:
        """x[g,j]."""
        return [(self.prefix[g][j], 1.0), (self.prefix[g][j - 1], -1.0)]


@BOUNDS.register
class StagesBound:
    """All stages at once, as a MILP or its LP relaxation: strongest with few stages."""

    name = "stages"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, stages)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
