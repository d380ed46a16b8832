"""Cells: sets of blocks that hold some groups and not others, and an LP that bounds the weight of the blocks in one.

A cell (inside, outside) stands for the blocks S (convex, f(S) < T) with all groups of `inside` and none of `outside`.
`Space.closed` widens both by what holds for every block of the cell:

- what lies on a path between inside groups is inside; an ancestor of what is outside and before the block is outside,
  and so are the descendants of what is outside and after it;
- with windows (`_sides`), groups that are in no stage with the inside are outside;
- a group whose paths to the inside lead through an outside group is outside, and so is one with which the block would
  cost T or more: the work of inside, group and paths, and the tensors that have groups among these and outside.

The LP of a cell has s[g] in [0, 1] per undecided group, and per tensor h a variable for its share that is cut:

    max pi s    with   w s + sum_h c_h cut_h <= T - overhead
    cut_h >= s_i - s_j  for i, j in h      (by the largest and the smallest s of h; one of them where h has an end
                                            inside or outside)
    s_p >= s_g    for p -> g, both behind the inside;   s_g >= s_p    for g -> p, both before it   (convexity)

Every block of the cell satisfies it, so its value bounds their weight. All cells of one anchor use one LP with other
bounds on s: what is decided at the anchor is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.bounds._blocks import ROUNDING, Blocks
from planner.bounds._budget import Budget
from planner.bounds._linear import SLACK, Linear, Session
from planner.ideals import bits

MAX_GROUPS = 2000
"""Above, the tables of all pairs are too large, and bounds by cells prove nothing."""
TINY = 1e-6
"""What an LP's value may differ from an integer."""
ROUNDS = 3
"""How often a cell is widened: what a further round would exclude is left to the LP."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Groups inside and outside, as bitsets."""

    inside: int
    outside: int


class Space:
    """The blocks below T."""

    def __init__(self, blocks: Blocks, below: float, windows: Sequence[tuple[int, int]] | None = None) -> None:
        self.blocks, self.below = blocks, below
        self._windows = _Windows(windows, blocks.num_paying) if windows is not None else None
        self.everything = (1 << len(blocks)) - 1
        self.unable = sum(1 << g for g, work in enumerate(blocks.work) if not math.isfinite(work))
        self._most = below * (1 + ROUNDING)
        self._tables = blocks.tables

    def closed(self, inside: int, outside: int) -> Cell | None:
        """The cell with all that follows; None when no block is in it."""
        blocks = self.blocks
        ahead, behind = self.around(inside)
        inside |= ahead & behind
        outside |= self.unable
        if self._windows is not None:
            outside |= self._windows.elsewhere(inside)
        for _ in range(ROUNDS):
            outside |= _all_of(blocks.ancestors, outside & ahead) | _all_of(blocks.descendants, outside & behind)
            if inside & outside:
                return None
            base = self._least_cost(inside, outside)
            if base > self._most:
                return None
            far = self._too_far(inside, outside, base, ahead, behind)
            outside |= far
            if not far:
                break
        return Cell(inside, outside)

    def around(self, inside: int) -> tuple[int, int]:
        """All ancestors and all descendants of the groups."""
        return _all_of(self.blocks.ancestors, inside), _all_of(self.blocks.descendants, inside)

    def anchored(self, g: int, inside: int = 0, outside: int = 0) -> Cell | None:
        """The blocks with g and nothing later in topological order, divided further. Over all g they are all blocks."""
        later = self.everything >> g + 1 << g + 1
        return self.closed(inside | 1 << g, outside | later)

    def _least_cost(self, inside: int, outside: int) -> float:
        """What every block of the cell costs at least."""
        blocks = self.blocks
        numbers = {number for g in bits(inside) for number in blocks.cuts_of[g]}
        sent = sum(blocks.cuts[number][1] for number in numbers if blocks.cut_sets[number] & outside)
        return blocks.overhead_s + blocks.work_of(inside) + sent

    def _too_far(self, inside: int, outside: int, base: float, ahead: int, behind: int) -> int:
        """Groups with a path from or to the inside that no block of the cell holds."""
        tables = self._tables
        groups = np.flatnonzero(tables.row((ahead | behind) & ~inside & ~outside))
        within, without = tables.row(inside), tables.row(outside)
        added = (tables.row(behind) | tables.descendants[groups]) & (tables.row(ahead) | tables.ancestors[groups])
        added[np.arange(len(groups)), groups] = True
        added &= ~within
        far = (added & without).any(axis=1)
        groups_in = added[~far].astype(float)
        cost = base + groups_in @ tables.work
        open_cuts = tables.touching(without) & ~tables.touching(within)  # cut as soon as they are touched
        cost += (groups_in @ tables.ends[:, open_cuts] > 0) @ tables.prices[open_cuts]
        far[~far] = cost > self._most
        return sum(1 << g for g in groups[far].tolist())


class _Windows:
    """Which groups can be in no stage with others, from the first and the last stage of each."""

    def __init__(self, windows: Sequence[tuple[int, int]], num_stages: int) -> None:
        self._windows, self._num_stages = windows, num_stages
        stages = range(num_stages + 2)
        self._later = [sum(1 << g for g, (first, _) in enumerate(windows) if first > stage) for stage in stages]
        self._earlier = [sum(1 << g for g, (_, last) in enumerate(windows) if last < stage) for stage in stages]

    def elsewhere(self, inside: int) -> int:
        """Groups that share no stage with all of these: intervals that meet in pairs have a common stage."""
        members = [self._windows[g] for g in bits(inside)]
        first = min(max((first for first, _ in members), default=0), self._num_stages + 1)
        last = max(min((last for _, last in members), default=self._num_stages + 1), 0)
        return self._later[last] | self._earlier[first]


class CellLp:
    """The LP of an anchor's cells: the most weight below T, or (without weights) the least cost."""

    def __init__(self, space: Space, root: Cell, weights: Sequence[float] | None, budget: Budget) -> None:
        self.groups = tuple(bits(space.everything & ~root.outside))
        self._column = {g: number for number, g in enumerate(self.groups)}
        self._below = space.below
        model = Linear()
        for g in self.groups:
            model.add(-weights[g] if weights else 0.0, low=float(root.inside >> g & 1))
        terms, self._fixed = self._cost(model, space, root)
        if weights is not None:
            model.row(terms, high=1.0 + SLACK - self._fixed)
        else:
            for column, price in terms:
                model.cost[column] += price
        self._convexity(model, space, root)
        self._session = Session(model, budget)

    def reweigh(self, weights: Sequence[float]) -> None:
        """Other weights pi."""
        self._session.recost([-weights[g] for g in self.groups])

    def most(self, cell: Cell) -> tuple[float, dict[int, float] | None]:
        """No block of the cell weighs more than this (infinite: not known), and the LP's s by group."""
        bound, values = self._solve(cell)
        return -bound, values

    def least_s(self, cell: Cell) -> tuple[float, dict[int, float] | None]:
        """No block of the cell costs less than this, in seconds (minus infinity: not known); the LP's s by group."""
        bound, values = self._solve(cell)
        return (bound + self._fixed) * self._below, values

    def _solve(self, cell: Cell) -> tuple[float, dict[int, float] | None]:
        low = np.array([float(cell.inside >> g & 1) for g in self.groups])
        high = np.array([float(not cell.outside >> g & 1) for g in self.groups])
        answer = self._session.solve(low, high)
        values = None if answer.values is None else answer.values[: len(self.groups)].tolist()
        return answer.bound, None if values is None else dict(zip(self.groups, values, strict=True))

    def _cost(self, model: Linear, space: Space, root: Cell) -> tuple[list[tuple[int, float]], float]:
        """f(S) in units of T: terms and a constant."""
        blocks, per_s = space.blocks, 1.0 / space.below
        terms, fixed = [(self._column[g], blocks.work[g] * per_s) for g in self.groups], blocks.overhead_s * per_s
        for number in sorted({h for g in self.groups for h in blocks.cuts_of[g]}):
            price = blocks.cuts[number][1] * per_s
            ends, constant = self._cut(model, blocks, number, root)
            fixed += price * constant
            terms += [(column, price * sign) for column, sign in ends]
        return terms, fixed

    def _cut(self, model: Linear, blocks: Blocks, number: int, root: Cell) -> tuple[list[tuple[int, float]], float]:
        """Rows of one tensor; its cut share as terms and a constant."""
        whole = blocks.cut_sets[number]
        ends = [self._column[g] for g in blocks.cuts[number][0] if g in self._column]
        outside, inside = bool(whole & root.outside), bool(whole & root.inside)
        if outside and inside:
            return [], 1.0
        if outside and len(ends) == 1:
            return [(ends[0], 1.0)], 0.0
        terms: list[tuple[int, float]] = []
        if not inside:
            largest = model.add()
            terms.append((largest, 1.0))
            for end in ends:
                model.row([(largest, 1.0), (end, -1.0)], low=0.0)
        if not outside:
            smallest = model.add()
            terms.append((smallest, -1.0))
            for end in ends:
                model.row([(smallest, 1.0), (end, -1.0)], high=0.0)
        return terms, float(inside)

    def _convexity(self, model: Linear, space: Space, root: Cell) -> None:
        """Paths between a group and the inside."""
        blocks = space.blocks
        ahead, behind = space.around(root.inside)
        for g in self.groups:
            nearer = blocks.before[g] & behind if behind >> g & 1 else blocks.after[g] & ahead if ahead >> g & 1 else 0
            for p in bits(nearer & ~root.inside & ~root.outside):
                model.row([(self._column[g], 1.0), (self._column[p], -1.0)], high=0.0)


def divide_at(blocks: Blocks, cell: Cell, values: dict[int, float]) -> int | None:
    """The most fractional undecided group, by what it costs alone; else one that is in; None if all are decided."""
    undecided = [g for g in values if not (cell.inside | cell.outside) >> g & 1]
    best = max(undecided, key=lambda g: (_distance(values[g]) * blocks.alone_s(g), values[g], g), default=None)
    return best if best is not None and values[best] > TINY else None


def _distance(value: float) -> float:
    return min(value, 1.0 - value) if TINY < value < 1.0 - TINY else 0.0


def _all_of(table: Sequence[int], groups: int) -> int:
    """The union of the entries of some groups, with these."""
    found = groups
    for g in bits(groups):
        found |= table[g]
    return found
