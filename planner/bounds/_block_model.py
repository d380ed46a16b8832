"""The MILP of one block, in units of `unit` seconds.

    a[g] = 1: g is in an earlier stage     b[g] = 1: g is in this block or earlier        (binary; s[g] = b[g] - a[g])
    a[g] <= b[g],   a[v] <= a[u],  b[v] <= b[u]  for u -> v                               (convex, with what is before)
    largest[h] >= s[g],  smallest[h] <= s[g]  for g in h;   cut share of h = largest - smallest
    min  overhead + w s + sum_h c_h (largest[h] - smallest[h])

Archer et al. 2024 (three superblocks: before, block, after); a tensor is counted once, at whichever side it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.bounds._blocks import Blocks
from planner.bounds._linear import SLACK, Linear
from planner.ideals import bits


class BlockModel:
    """`linear` is the model; the objective leaves out the overhead."""

    def __init__(self, blocks: Blocks, unit: float) -> None:
        self.blocks, self.linear = blocks, Linear()
        size = range(len(blocks))
        work = [seconds / unit if math.isfinite(seconds) else 0.0 for seconds in blocks.work]
        self.earlier = [self.linear.add(-work[g], integer=True) for g in size]
        self.reached = [self.linear.add(work[g], integer=True) for g in size]
        self._order()
        for number, (_, price) in enumerate(blocks.cuts):
            self._cut(number, price / unit)

    def require(self, weights: Sequence[float], need: float) -> None:
        """Only blocks of at least this weight (less a slack)."""
        scale = 1.0 / need
        terms = [(self.reached[g], weight * scale) for g, weight in enumerate(weights) if weight]
        terms += [(self.earlier[g], -weight * scale) for g, weight in enumerate(weights) if weight]
        self.linear.row(terms, low=1.0 - SLACK)

    def _order(self) -> None:
        linear = self.linear
        for g in range(len(self.blocks)):
            able = math.isfinite(self.blocks.work[g])
            linear.row([(self.earlier[g], 1.0), (self.reached[g], -1.0)], low=-1.0 if able else 0.0, high=0.0)
            for u in bits(self.blocks.before[g]):
                for kind in (self.earlier, self.reached):
                    linear.row([(kind[g], 1.0), (kind[u], -1.0)], high=0.0)

    def _cut(self, number: int, price: float) -> None:
        largest, smallest = self.linear.add(price), self.linear.add(-price)
        for g in self.blocks.cuts[number][0]:
            share = [(self.reached[g], -1.0), (self.earlier[g], 1.0)]
            self.linear.row([(largest, 1.0), *share], low=0.0)
            self.linear.row([(smallest, 1.0), *share], high=0.0)
