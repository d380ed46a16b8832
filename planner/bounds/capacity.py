"""The capacity bound: how much work can share a stage with a given group?

Theorem. Let theta_v >= max { w(S) : v in S, S convex, f(S) < T } for every group v. If, with the weights
pi_v = w_v / theta_v, `need` of `_blocks` is above 1 (without free devices: sum_v w_v / theta_v > k), then no partition
has a bottleneck below T.

Proof. For a block S below T, theta_v >= w(S) for all v in S, so pi(S) <= sum over v in S of w_v / w(S) = 1.

Groups where transfers are cheap have a large theta and count little. Groups without work count nothing. theta_v is the
LP of the cell of all blocks with v (`_cells`); T is found by bisection. `configuration` continues from here.
"""

from __future__ import annotations

import math

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import ROUNDING, Blocks, blocks_of
from planner.bounds._budget import Budget
from planner.bounds._cells import MAX_GROUPS, CellLp, Space
from planner.bounds.base import BOUNDS, BoundQuery
from planner.bounds.pigeonhole import average
from planner.partition.instance import BottleneckInstance

CLOSE = 0.005
"""Relative distance of the refuted and the unrefuted T at which the bisection ends."""


def capacity(instance: BottleneckInstance, upper: float, budget: Budget) -> float:
    """The largest T found that is refuted, in seconds; at least the average work. One LP per group and T."""
    blocks, low = blocks_of(instance), average(instance, upper)
    high = upper
    if not math.isfinite(high) or low <= 0 or len(blocks) > MAX_GROUPS:
        return low
    while high > low * (1 + CLOSE) and not budget.expired():
        middle = math.sqrt(low * high)
        if refuted(blocks, middle, budget):
            low = middle
        else:
            high = middle
    return low


def refuted(blocks: Blocks, below: float, budget: Budget) -> bool:
    """Whether the theorem shows that no partition is below `below`."""
    weights = capacity_weights(blocks, below, budget)
    return weights is not None and blocks.need(weights, below) > 1.0


def capacity_weights(blocks: Blocks, below: float, budget: Budget) -> list[float] | None:
    """w_v / theta_v per group; 0 where nothing is known. None when the budget ended first."""
    space, weights = Space(blocks, below), []
    work = [seconds if math.isfinite(seconds) else 0.0 for seconds in blocks.work]
    for g in range(len(blocks)):
        if budget.expired():
            return None
        weights.append(work[g] / _capacity(space, g, work, budget) if work[g] > 0 else 0.0)
    return weights


def _capacity(space: Space, g: int, work: list[float], budget: Budget) -> float:
    """theta of group g: at least its own work (where no block has it, it needs a free device or refutes T)."""
    cell = space.closed(1 << g, 0)
    if cell is None:
        return work[g] * ROUNDING
    most, _ = CellLp(space, cell, work, budget).most(cell)
    return max(min(most, space.below), work[g])


@BOUNDS.register
class CapacityBound:
    """How much work can share a stage with each group: the shares of all groups sum up to stages that are needed."""

    name = "capacity"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, capacity)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
