"""Refutation: the exact pass over all ideals finds nothing below T.

Theorem. Every partition is a chain of ideals. The pass of `planner.partition.exact_pass` follows all chains whose
stages cost less than T; when none reaches the full ideal, every partition has a bottleneck of at least T.

Chains that leave the windows of T cannot end below it (`planner.partition.windows`). The pass subtracts prefix sums,
which ROUNDING covers. What a third party checks again: the number of ideals, T, and that no chain was found.
"""

from __future__ import annotations

import math

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import ROUNDING
from planner.bounds._budget import Budget
from planner.bounds.base import BOUNDS, BoundQuery
from planner.errors import LimitError
from planner.partition.exact_pass import MAX_IDEALS, refute
from planner.partition.instance import BottleneckInstance


def refutation(instance: BottleneckInstance, upper: float, budget: Budget, *, max_ideals: int = MAX_IDEALS) -> float:
    """`upper` (less rounding) if nothing is below it, else 0: too many ideals, no time, or there is something."""
    if not math.isfinite(upper):
        return 0.0
    try:
        nothing = refute(instance, upper * (1 - ROUNDING), expired=budget.expired, max_ideals=max_ideals)
    except LimitError:
        return 0.0
    return upper * (1 - 2 * ROUNDING) if nothing else 0.0


@BOUNDS.register
class RefutationBound:
    """The exact pass over all ideals finds nothing below the value: for graphs with few ideals."""

    name = "refutation"

    def objective_s(self, query: BoundQuery) -> float | None:
        """In the `blocking` model, throughput only, within the query's time."""
        return throughput_bound(query, refutation)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Nothing."""
        return None
