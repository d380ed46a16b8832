"""The weights of the configuration bound: an LP over what is known of blocks.

    max  pi(all) - sum over free classes c of count_c F_c(pi)     with    pi . row <= 1 for all rows,   0 <= pi <= cap

divided by the number of paying devices. F_c(pi), the fractional knapsack of a free device, is linear by its dual:
F_c = min over lambda of lambda room_c + sum_g max(0, pi_g - lambda w_c,g).

The caps (a multiple of the work and tensors of each group) keep weights smooth while few rows are known. HiGHS solves
it by interior point without crossover: weights from the middle of the best ones are better than a corner of them.
Nothing here has to be exact: whatever weights come out are proven later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.bounds._blocks import Blocks
from planner.bounds._budget import Budget
from planner.bounds._linear import Linear, interior
from planner.ideals import bits

CAP = 4.0
"""Weights are at most this multiple of a group's fair share of k blocks."""


MOST_PRICE = 1e6
"""Weight per second of a free device."""


@dataclass(eq=False, slots=True)
class Row:
    """factors . pi <= 1. `cost` is what the block costs; fractions cost nothing here: they hold from T on."""

    factors: dict[int, float]
    cost_s: float


class Weights:
    """Rows, and the weights that they allow."""

    def __init__(self, blocks: Blocks, budget: Budget) -> None:
        self.blocks, self.budget = blocks, budget
        self.rows: list[Row] = []
        self.known: set[int] = set()
        self.pi: list[float] = []
        shares = [_size(blocks, g) for g in range(len(blocks))]
        total = math.fsum(shares) or 1.0
        self._caps = [CAP * max(1, blocks.num_paying) * share / total for share in shares]

    def add_block(self, block: int) -> None:
        """A convex set; it counts from its cost on."""
        if block and block not in self.known:
            self.known.add(block)
            self.rows.append(Row(dict.fromkeys(bits(block), 1.0), self.blocks.cost(block)))

    def add_fraction(self, factors: dict[int, float]) -> Row:
        """An answer of a cell's LP."""
        row = Row({g: value for g, value in factors.items() if value > 1e-9}, 0.0)
        self.rows.append(row)
        return row

    def drop(self, row: Row) -> None:
        """Forget a row."""
        self.rows = [other for other in self.rows if other is not row]

    def value(self, row: Row) -> float:
        """The row at the current weights."""
        return math.fsum(factor * self.pi[g] for g, factor in row.factors.items())

    def solve(self, below: float) -> tuple[float, list[float]]:
        """What some block must weigh at least with the best weights, and these."""
        blocks, model = self.blocks, Linear()
        for cap in self._caps:
            model.add(-1.0, high=cap)
        for row in self.rows:
            if row.cost_s < below:
                model.row(list(row.factors.items()), high=1.0)
        for entry in blocks.free:
            self._free(model, entry.count, entry.work_s, max(0.0, below - entry.overhead_s))
        values = interior(model, self.budget).values
        self.pi = [0.0] * len(blocks) if values is None else [max(0.0, v) for v in values[: len(blocks)].tolist()]
        return blocks.need(self.pi, below), self.pi

    def _free(self, model: Linear, count: int, work: Sequence[float], room: float) -> None:
        """The knapsack of a free class by its dual."""
        top = max(self._caps, default=1.0)
        price = model.add(count * room, high=MOST_PRICE)
        for g, seconds in enumerate(work):
            if math.isfinite(seconds):
                excess = model.add(float(count), high=top)
                model.row([(excess, 1.0), (g, -1.0), (price, float(seconds))], low=0.0)


def _size(blocks: Blocks, g: int) -> float:
    work = blocks.work[g] if math.isfinite(blocks.work[g]) else 0.0
    return work + 0.5 * sum(blocks.cuts[number][1] / len(blocks.cuts[number][0]) for number in blocks.cuts_of[g])
