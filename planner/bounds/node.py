"""The node bound: every group is in some stage, and that stage pays for its edges.

Theorem. For every group v, the bottleneck is at least the smallest of T, f(S) over the convex S with v in S and
f(S) < T, and the work of v on any device that pays no transfers.

Proof. v is in some stage: on a free device, whose load is at least the work of v there, or it is a block with v. Blocks
of T or more are at least T. Groups that no block below T has in common with v (`_cells`) can be left out.

The minimum is found by branch and bound over cells, smallest LP first: it may be stopped at any time, and then bounds
from below. Few groups matter, those with the most work and the costliest tensors. The bound does not depend on the
number of stages, so it decides when there are many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import Blocks, blocks_of
from planner.bounds._budget import Budget
from planner.bounds._cells import MAX_GROUPS, Cell, CellLp, Space, divide_at
from planner.bounds.base import BOUNDS, BoundQuery
from planner.partition.instance import BottleneckInstance

NUM_GROUPS = 5
"""The best of all groups was among the first five on every instance tried (proof.md, section 3)."""


def node(instance: BottleneckInstance, upper: float, budget: Budget, *, num_groups: int = NUM_GROUPS) -> float:
    """The best over `num_groups` groups, in seconds, at most `upper`; 0 when nothing is proven."""
    blocks = blocks_of(instance)
    if len(blocks) > MAX_GROUPS:
        return 0.0
    size = [blocks.alone_s(g) for g in range(len(blocks))]
    ranked = sorted(range(len(blocks)), key=lambda g: (-size[g], g))[:num_groups]
    best = 0.0
    for number, g in enumerate(ranked):
        if best >= upper or budget.expired():
            break
        share = budget.part(budget.left_s() / (len(ranked) - number))
        best = max(best, min(_free_s(blocks, g), of_group(blocks, g, upper, share)))
    return min(best, upper)


def of_group(blocks: Blocks, g: int, upper: float, budget: Budget) -> float:
    """The least cost of a block with group g, in seconds, at most `upper`."""
    below = min(upper, blocks.alone_s(g))
    if not math.isfinite(below) or below <= 0:
        return min(upper, max(0.0, blocks.work[g]))
    space = Space(blocks, below)
    root = space.closed(1 << g, 0)
    if root is None:
        return below
    lp = CellLp(space, root, None, budget)
    waiting, number = [_Part(*lp.least_s(root), 0, root)], 1
    while waiting[0].least_s < below and not budget.expired():
        part = heappop(waiting)
        divided = _halves(space, part)
        if divided is None:
            return min(below, part.least_s)
        for cell in divided:
            least_s, values = lp.least_s(cell)
            heappush(waiting, _Part(max(least_s, part.least_s), values, number, cell))
            number += 1
        if not waiting:
            return below
    return max(0.0, min(below, waiting[0].least_s))


@dataclass(order=True, slots=True)
class _Part:
    """A cell in the queue, with its LP's bound and values; older ones first where bounds are equal."""

    least_s: float
    values: dict[int, float] | None = field(compare=False)
    number: int
    cell: Cell = field(compare=False)


def _halves(space: Space, part: _Part) -> list[Cell] | None:
    """The cell with and without a group; None when nothing is undecided or the LP failed."""
    group = divide_at(space.blocks, part.cell, part.values) if part.values else None
    if group is None:
        return None
    cells = (
        space.closed(part.cell.inside | 1 << group, part.cell.outside),
        space.closed(part.cell.inside, part.cell.outside | 1 << group),
    )
    return [cell for cell in cells if cell is not None]


def _free_s(blocks: Blocks, g: int) -> float:
    """Least seconds of the group on a device that pays no transfers."""
    return min((entry.overhead_s + entry.work_s[g] for entry in blocks.free), default=math.inf)


@BOUNDS.register
class NodeBound:
    """Every group is in some stage, which pays for its work and its edges: strongest with many stages."""

    name = "node"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, node)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
