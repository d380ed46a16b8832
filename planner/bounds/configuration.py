"""The configuration bound: cover all groups with blocks below T. If that takes more than k blocks, no plan is below T.

Theorem. Let pi >= 0 be weights of groups, and P an upper bound on pi(S) over all blocks S with f(S) < T. With `need` of
`_blocks` (without free devices: pi(all) / k), if P < need, then no partition has a bottleneck below T.

Proof. Some stage of such a partition is a block with f(S) < T and pi(S) >= need > P, which cannot be. (In terms of
linear programming: pi / P is a feasible dual solution of the fractional covering of the groups by blocks below T.)

Nothing but the last step has to be believed: weights may come from anywhere, and P is the largest of dual bounds, one
per cell of a division of all blocks into cells (`_cells`). The division starts with one cell per group, of the blocks
in which it is the last one in topological order.

How the weights are found. The best weights pi maximise need subject to pi(S) <= 1 for all blocks S; rows are added as
they are violated. The LP of a cell yields a row as well: a vector s that the blocks' rows would have to imply if the
cell's LP were tight. While need stays above 1 with all rows, T is still provable with this division. When it does not,
the cells whose rows hold it down are split at a fractional group, and their rows dropped. When rows of true blocks
alone hold it down, the configuration bound cannot prove T at all, and a smaller T is tried.

Any stopping point is sound: the bound is the largest T that was refuted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import Blocks, blocks_of
from planner.bounds._budget import Budget
from planner.bounds._cells import MAX_GROUPS, Cell, CellLp, Space, divide_at
from planner.bounds._sides import Sides, applies, sides_of
from planner.bounds._weights import Row, Weights
from planner.bounds.base import BOUNDS, BoundQuery
from planner.bounds.pigeonhole import average
from planner.ideals import bits
from planner.partition.instance import BottleneckInstance

FIRST_STEP = 0.1
"""Relative distance of the first T tried from the bound that is known."""
LOWEST = 1 / 64
"""The first T, as a share of the upper bound, where no other bound is known."""
LARGEST_STEP = 0.12
SMALLEST_STEP = 0.004
QUICK = 0.06
"""A success within this share of the time left allows larger steps."""
PATIENCE = 0.35
"""The share of the time left that one T may take."""
TIGHT = 1e-3
"""Rows within this of 1 count as those that hold the weights down."""
FIRST_SPLITS = 8
"""How often the cells of one anchor are divided before the weights are blamed."""
MORE_SPLITS = 1.5
TOLERANCE = 1e-5
"""What the weights' LP may leave of its rows."""
ENOUGH_ROWS = 0.25
"""New rows, as a share of the groups, after which the weights are found anew."""


class Verdict(StrEnum):
    """What came of one T."""

    REFUTED = "refuted"
    COVERED = "covered"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuted:
    """The bound in seconds, and what proves it: the weights of groups and the number of cells, for checking again."""

    value_s: float
    weights: tuple[float, ...] = ()
    num_cells: int = 0
    limit_s: float = math.inf


@dataclass(slots=True)
class Leaf:
    """One part of the division: the blocks with `anchor` and `inside`, without `outside` and what is after the anchor.

    At T = `below`: its cell (None: it is empty), the last answer of its LP, and the rows made of such answers.
    """

    anchor: int
    inside: int = 0
    outside: int = 0
    below: float = 0.0
    cell: Cell | None = None
    last: dict[int, float] | None = None
    rows: list[Row] = field(default_factory=list)


def configuration(
    instance: BottleneckInstance, upper: float, budget: Budget, *, known: float, sides: Sides | None = None
) -> Refuted:
    """The largest T up to `upper` that is refuted within the budget; `known` is a bound to start from.

    `sides`: if they are known already. Bounds by cells: up to MAX_GROUPS groups.
    """
    blocks = blocks_of(instance)
    if len(blocks) > MAX_GROUPS or not math.isfinite(upper):
        return Refuted(value_s=known)
    return _Search(blocks, upper, budget, known, sides).run()


class _Search:
    """Refutes one T after the other; cells and rows are kept."""

    def __init__(self, blocks: Blocks, upper: float, budget: Budget, known: float, sides: Sides | None) -> None:
        self.blocks, self.upper, self.budget = blocks, upper, budget
        self.best = Refuted(value_s=known)
        self.sides = sides or (sides_of(blocks, budget) if applies(blocks) else None)
        self.weights = Weights(blocks, budget)
        self.leaves = [Leaf(g) for g in reversed(range(len(blocks)))]
        self.lps: dict[int, CellLp] = {}

    def run(self) -> Refuted:
        """Steps shrink where blocks cover everything, or where time runs away; then the last division is taken up."""
        step, ceiling = FIRST_STEP, self.upper
        while step > SMALLEST_STEP and self._apart(ceiling) and not self.budget.expired():
            below = min(max(self.best.value_s * (1 + step), self.upper * LOWEST), self.upper)
            if below >= ceiling and ceiling < self.upper:
                below = (self.best.value_s + ceiling) / 2
            kept = list(self.leaves), list(self.weights.rows)
            left_s = self.budget.left_s()
            verdict = self._attempt(below, self.budget.part(left_s * PATIENCE))
            if verdict is Verdict.REFUTED and self.budget.left_s() > left_s * (1 - QUICK):
                step = min(LARGEST_STEP, 1.5 * step)
            if verdict is not Verdict.REFUTED:
                self.leaves, self.weights.rows = (
                    kept[0],
                    [row for row in self.weights.rows if row.cost_s or row in kept[1]],
                )
                step /= 2
                ceiling = below if verdict is Verdict.COVERED else ceiling
        return Refuted(
            value_s=self.best.value_s, weights=self.best.weights, num_cells=self.best.num_cells, limit_s=ceiling
        )

    def _apart(self, ceiling: float) -> bool:
        """Whether there is anything to try between the bound and what is known not to be provable."""
        return self.best.value_s < (ceiling if ceiling == self.upper else ceiling * (1 - SMALLEST_STEP))

    def _attempt(self, below: float, budget: Budget) -> Verdict:
        """Look for weights that refute `below`. Divisions are kept; cells are closed anew when they are looked at."""
        windows = self.sides.windows(below) if self.sides is not None else None
        self.space, self.lps = Space(self.blocks, below, windows), {}
        splits = FIRST_SPLITS
        while not budget.expired():
            need, pi = self.weights.solve(below)
            if need <= 1.0 + TOLERANCE:
                if not self._split_tight():
                    return Verdict.COVERED
                continue
            before = len(self.leaves), len(self.weights.rows)
            worst = self._sweep(pi, need, splits, budget)
            if worst < self.blocks.need(pi, below):
                self.best = Refuted(value_s=below, weights=tuple(pi), num_cells=len(self.leaves))
                return Verdict.REFUTED
            if before == (len(self.leaves), len(self.weights.rows)):
                return Verdict.OPEN  # an LP failed, and nothing can be divided
            splits = math.ceil(splits * MORE_SPLITS)
        return Verdict.OPEN

    def _cell(self, leaf: Leaf) -> Cell | None:
        """The cell at this T: for a larger T fewer groups are out of reach."""
        if leaf.below != self.space.below:
            leaf.cell = self.space.anchored(leaf.anchor, leaf.inside, leaf.outside)
            leaf.below, leaf.last = self.space.below, None
        return leaf.cell

    def _lp(self, leaf: Leaf) -> CellLp:
        """The LP of the leaf's anchor, made when it is first needed."""
        if leaf.anchor not in self.lps:
            root = self.space.anchored(leaf.anchor)
            assert root is not None
            self.lps[leaf.anchor] = CellLp(self.space, root, self.weights.pi, self.budget)
        return self.lps[leaf.anchor]

    def _sweep(self, pi: list[float], need: float, splits: int, budget: Budget) -> float:
        """Bound all cells, dividing those of an anchor up to `splits` times; rows for those that remain too heavy.

        The largest bound; infinite when the sweep was ended early.
        """
        worst, added, left = 0.0, 0, [splits] * len(self.blocks)
        waiting, kept = self.leaves[::-1], list[Leaf]()
        while waiting and added <= ENOUGH_ROWS * len(self.blocks) and not budget.expired():
            leaf = waiting.pop()
            most = self._most(leaf, pi, need)
            if most >= need and leaf.last is not None:
                group = self._group(leaf, leaf.last) if left[leaf.anchor] else None
                if group is not None:
                    left[leaf.anchor] -= 1
                    self._drop_rows(leaf)
                    waiting += self._halves(leaf, group)
                    continue
                leaf.rows.append(self.weights.add_fraction(leaf.last))
                self._round(leaf, pi)
                added += 1
            worst = max(worst, most)
            kept.append(leaf)
        self.leaves = kept + waiting[::-1]
        return math.inf if waiting else worst

    def _most(self, leaf: Leaf, pi: list[float], need: float) -> float:
        """An upper bound on the weight of the leaf's blocks; the LP is left out where the sum of all is small."""
        cell = self._cell(leaf)
        if cell is None:
            return 0.0
        everything = math.fsum(pi[g] for g in bits(self.space.everything & ~cell.outside))
        if everything < need:
            return everything
        lp = self._lp(leaf)
        lp.reweigh(pi)
        most, leaf.last = lp.most(cell)
        return most

    def _round(self, leaf: Leaf, pi: list[float]) -> None:
        """A true block near the LP's answer, if it is below T, is a row of its own."""
        assert leaf.last is not None
        near = sum(1 << g for g, value in leaf.last.items() if value > 0.5)
        ahead, behind = self.space.around(near)
        block = ahead & behind
        if block and self.blocks.cost(block) < self.space.below and math.fsum(pi[g] for g in bits(block)) > 1.0:
            self.weights.add_block(block)

    def _split_tight(self) -> bool:
        """Divide the cells whose rows are tight; False when there is none to divide."""
        kept: list[Leaf] = []
        for leaf in self.leaves:
            tight = [row for row in leaf.rows if self.weights.value(row) > 1 - TIGHT]
            group = self._group(leaf, tight[-1].factors) if tight else None
            if group is None:
                kept.append(leaf)
            else:
                self._drop_rows(leaf)
                kept += self._halves(leaf, group)
        done = len(kept) > len(self.leaves)
        self.leaves = kept
        return done

    def _drop_rows(self, leaf: Leaf) -> None:
        for row in leaf.rows:
            self.weights.drop(row)

    def _group(self, leaf: Leaf, values: dict[int, float]) -> int | None:
        cell = self._cell(leaf)
        return divide_at(self.blocks, cell, values) if cell is not None else None

    def _halves(self, leaf: Leaf, group: int) -> list[Leaf]:
        """The leaf with and without a group."""
        return [
            Leaf(leaf.anchor, leaf.inside | 1 << group, leaf.outside),
            Leaf(leaf.anchor, leaf.inside, leaf.outside | 1 << group),
        ]


@BOUNDS.register
class ConfigurationBound:
    """Weights of groups of which no stage below the value can hold enough: the strongest on wide graphs."""

    name = "configuration"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, _from_average)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None


def _from_average(instance: BottleneckInstance, upper: float, budget: Budget) -> float:
    return configuration(instance, upper, budget, known=average(instance, upper)).value_s
