"""The k-stage bound: all stages at once, as a MILP or its LP relaxation.

Theorem. The bottleneck is at least the smaller of T and the minimum of

    y[g,j] = 1: g is in stage j or an earlier one  (binary);    x[g,j] = y[g,j] - y[g,j-1],   y[g,0] = 0,  y[g,k] = 1
    y[g,j-1] <= y[g,j];    y[v,j] <= y[u,j]  for u -> v
    largest[h,j] >= x[g,j],  smallest[h,j] <= x[g,j]  for g in h
    min t    with    w x[.,j] + sum_h c_h (largest[h,j] - smallest[h,j]) <= t    for every stage j

    windows:  y[g,j] = 0 for j < ceil(w(g and ancestors) / T),  y[g,j] = 1 for j > k - ceil(w(g and descendants) / T)

Proof. Every partition of at most k stages is a solution with its loads (pad with empty stages). If its bottleneck is
below T, the stages up to that of g hold g and its ancestors, each less than T of their work, so the windows hold; where
they leave a group no stage, T is refuted. The least overhead of a stage is added (of the stage with the largest load).

For instances where every device pays transfers; with free devices there is no such bound.
"""

from __future__ import annotations

import math

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import ROUNDING, Blocks, blocks_of
from planner.bounds._budget import Budget
from planner.bounds._linear import Linear, Session, mip_bound
from planner.bounds.base import BOUNDS, BoundQuery
from planner.ideals import bits
from planner.partition.instance import BottleneckInstance

MAX_BINARIES = 20_000
"""Larger models take too long to build."""


def stages(instance: BottleneckInstance, upper: float, budget: Budget, *, integer: bool = True) -> float:
    """In seconds, at most `upper`; 0 when nothing is proven. `integer` False: the LP relaxation, quick and weak."""
    blocks = blocks_of(instance)
    unable = not all(math.isfinite(work) for work in blocks.work)
    if blocks.free or unable or not math.isfinite(upper) or not 0 < blocks.num_paying * len(blocks) <= MAX_BINARIES:
        return 0.0
    model = StagesModel(blocks, upper)
    if any(first > last for first, last in model.windows):
        return upper
    found = mip_bound(model.linear, budget) if integer else Session(model.linear, budget).solve().bound
    return 0.0 if found is None else max(0.0, min(upper, blocks.overhead_s + found * upper))


class StagesModel:
    """The model in units of T; `linear.integer` are the y that the windows leave open."""

    def __init__(self, blocks: Blocks, below: float) -> None:
        self.blocks, self.below, self.linear = blocks, below, Linear()
        self.bottleneck = self.linear.add(1.0)
        self.windows = [self._window(g) for g in range(len(blocks))]
        self.prefix = [[self._prefix(g, j) for j in range(blocks.num_paying + 1)] for g in range(len(blocks))]
        for g in range(len(blocks)):
            self._order(g)
        for j in range(1, blocks.num_paying + 1):
            self._load(j)

    def _window(self, g: int) -> tuple[int, int]:
        """The first and the last stage that group g can be in."""
        blocks = self.blocks
        sides = blocks.work_of(blocks.ancestors[g] | 1 << g), blocks.work_of(blocks.descendants[g] | 1 << g)
        least = [max(1, math.ceil(work / self.below * (1 - ROUNDING) - ROUNDING)) for work in sides]
        return least[0], blocks.num_paying + 1 - least[1]

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
    """See the module."""

    name = "stages"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, stages)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
