"""The three-superblock bound (Archer et al. 2024): some stage has at least the average work, and pays for its edges.

Theorem. With `need` of `_blocks` for the weights pi = w: the bottleneck is at least the smaller of T and
min { f(S) : S convex, w(S) >= need }.

Proof. If it is below T, some stage is a block of at least this work, and its load is at least f(S). What comes before
and after it may be merged into two superblocks: f counts a tensor once however many stages are on the other side.

The minimum is a MILP (`_block_model`); what counts is the solver's dual bound. Its LP relaxation is worth nothing: the
same fraction of every group cuts no tensor.
"""

from __future__ import annotations

import math

from planner.bounds._adapter import throughput_bound
from planner.bounds._block_model import BlockModel
from planner.bounds._blocks import blocks_of
from planner.bounds._budget import Budget
from planner.bounds._linear import mip_bound
from planner.bounds.base import BOUNDS, BoundQuery
from planner.bounds.pigeonhole import average
from planner.bounds.stages import MAX_BINARIES
from planner.partition.instance import BottleneckInstance


def three_superblock(instance: BottleneckInstance, upper: float, budget: Budget) -> float:
    """In seconds, at most `upper`, at least the average work. One MILP of 2 binaries per group."""
    blocks, least = blocks_of(instance), average(instance, upper)
    weights = [work if math.isfinite(work) else 0.0 for work in blocks.work]
    need = blocks.need(weights, upper)
    if not 0 < need < math.inf or least <= 0 or 2 * len(blocks) > MAX_BINARIES:
        return least
    model = BlockModel(blocks, least)
    model.require(weights, need)
    found = mip_bound(model.linear, budget)
    return least if found is None else min(upper, max(least, blocks.overhead_s + found * least))


@BOUNDS.register
class ThreeSuperblockBound:
    """Some stage has at least the average work, and pays for its edges (Archer et al. 2024)."""

    name = "three_superblock"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, three_superblock)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
