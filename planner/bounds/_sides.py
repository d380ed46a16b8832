"""What a group has on either side of it at least: the cheapest prefix with it, and the cheapest rest with it.

For an ideal I, w(I) its work and X(I) the cost of the tensors that it cuts: the stages that make up I pay at least
w(I) + X(I) together, as each tensor cut by I is cut by a stage before the boundary; and so do those after it for the
rest. So a group that is in stage j or before needs

    min { w(I) + X(I) : I an ideal with the group }  <=  j T

and a group in stage j or after needs the same of the rest, at most (k - j + 1) T. Both are minimum cuts, solved as LPs
(b[g] = 1: g in I); any duals prove a bound on them.
"""

from __future__ import annotations

import math

import numpy as np

from planner.bounds._blocks import ROUNDING, Blocks
from planner.bounds._budget import Budget
from planner.bounds._linear import Linear, Session
from planner.ideals import bits

WINDOW_SHARE = 0.2
"""The share of a bound's time that windows may take; work alone makes the rest of them."""


class Sides:
    """`before_s[g]` and `after_s[g]`, for instances where every device pays for transfers. Two LPs per group."""

    def __init__(self, blocks: Blocks, budget: Budget) -> None:
        self.blocks, self.budget = blocks, budget
        before, after = _session(blocks, budget, 1.0), _session(blocks, budget, -1.0)
        self.before_s = [self._before(before, g) for g in range(len(blocks))]
        self.after_s = [self._after(after, g) for g in range(len(blocks))]

    def windows(self, below: float) -> list[tuple[int, int]]:
        """Per group the first and the last of the stages 1 to k that it can be in; none where the first is larger."""
        counts = [[_stages(side, below) for side in sides] for sides in (self.before_s, self.after_s)]
        return [(first, self.blocks.num_paying + 1 - last) for first, last in zip(*counts, strict=True)]

    def _before(self, session: Session, g: int) -> float:
        """Least seconds of the stages up to the group's own; its ancestors' work when the budget is over."""
        blocks = self.blocks
        simple = blocks.work_of(blocks.ancestors[g] | 1 << g)
        if self.budget.expired():
            return simple
        low, high = np.zeros(len(blocks)), np.ones(len(blocks))
        low[list(bits(blocks.ancestors[g] | 1 << g))] = 1.0
        return max(simple, session.solve(low, high).bound)

    def _after(self, session: Session, g: int) -> float:
        """Least seconds of the group's own stage and those after it."""
        blocks = self.blocks
        simple = blocks.work_of(blocks.descendants[g] | 1 << g)
        if self.budget.expired():
            return simple
        low, high = np.zeros(len(blocks)), np.ones(len(blocks))
        high[list(bits(blocks.descendants[g] | 1 << g))] = 0.0
        return max(simple, session.solve(low, high).bound + blocks.work_of((1 << len(blocks)) - 1))


def applies(blocks: Blocks) -> bool:
    """Whether there are windows: all devices pay, and run every group."""
    return bool(blocks.num_paying) and not blocks.free and all(math.isfinite(work) for work in blocks.work)


def sides_of(blocks: Blocks, budget: Budget) -> Sides:
    """The sides of all groups, within a share of the time."""
    return Sides(blocks, budget.part(budget.left_s() * WINDOW_SHARE))


def _stages(seconds: float, below: float) -> int:
    """How many stages below T take so many seconds at least."""
    return max(1, math.ceil(seconds / below * (1 - ROUNDING) - ROUNDING))


def _session(blocks: Blocks, budget: Budget, sign: float) -> Session:
    """min sign * w b + X(b) over ideals."""
    model = Linear()
    for work in blocks.work:
        model.add(sign * work)
    for g in range(len(blocks)):
        for u in bits(blocks.before[g]):
            model.row([(g, 1.0), (u, -1.0)], high=0.0)
    for ends, price in blocks.cuts:
        largest, smallest = model.add(price), model.add(-price)
        for g in ends:
            model.row([(largest, 1.0), (g, -1.0)], low=0.0)
            model.row([(smallest, 1.0), (g, -1.0)], high=0.0)
    return Session(model, budget)
