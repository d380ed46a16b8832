"""The node bound: every group is in some stage, and that stage pays for its edges.

Theorem. For every group v, the bottleneck is at least the smallest of T, f(S) over the convex S with v in S and
f(S) < T, and the work of v on any device that pays no transfers.

Proof. v is in some stage: on a free device, whose load is at least the work of v there, or it is a block with v. Blocks
of T or more are at least T. Groups that no block below T has in common with v (`_cells`) can be left out.

The minimum is a MILP per group; few groups matter, those with the most work and the costliest tensors. Independent of
the number of stages, so it decides when there are many.
"""

from __future__ import annotations

import math

from planner.bounds._adapter import throughput_bound
from planner.bounds._block_model import BlockModel
from planner.bounds._blocks import Blocks, blocks_of
from planner.bounds._budget import Budget
from planner.bounds._cells import Space
from planner.bounds._linear import mip_bound
from planner.bounds.base import BOUNDS, BoundQuery
from planner.partition.instance import BottleneckInstance

NUM_GROUPS = 5
"""The best of all groups was among the first five on every instance tried (proof.md, section 3)."""


def node(instance: BottleneckInstance, upper: float, budget: Budget, *, num_groups: int = NUM_GROUPS) -> float:
    """The best over `num_groups` groups, in seconds, at most `upper`; 0 when nothing is proven."""
    blocks = blocks_of(instance)
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
    """The least cost of a block with group g below `upper`, or `upper`."""
    unit = upper if math.isfinite(upper) else max(blocks.alone_s(g), 1e-300)
    if not math.isfinite(unit) or not math.isfinite(blocks.work[g]):
        return upper
    model = BlockModel(blocks, unit)
    if math.isfinite(upper):
        cell = Space(blocks, upper).closed(1 << g, 0)
        if cell is None:
            return upper
        model.include(cell.inside)
        model.exclude(cell.outside)
    else:
        model.include(1 << g)
    found = mip_bound(model.linear, budget)
    return 0.0 if found is None else min(upper, blocks.overhead_s + found * unit)


def _free_s(blocks: Blocks, g: int) -> float:
    """Least seconds of the group on a device that pays no transfers."""
    return min((entry.overhead_s + entry.work_s[g] for entry in blocks.free), default=math.inf)


@BOUNDS.register
class NodeBound:
    """See the module."""

    name = "node"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, node)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
