"""The heaviest-layer bound: a layer is never cut, so its stage takes at least as long as the layer."""

from __future__ import annotations

from planner.bounds._layers import LeastSeconds, least_seconds, longest_path_before
from planner.bounds.base import BOUNDS, BoundQuery, lowered
from planner.options import Objective


@BOUNDS.register
class HeaviestLayerBound:
    """Some stage holds the layer with the largest least period p: the period of every plan is at least p.

    Proof for the iteration. Let layer v be in stage s. Before stage s can finish anything, one microbatch passes the
    layers on a path to v; those outside stage s run their forward before the first forward and their backward after
    the last backward of s, those inside add to the M passes of s. With an unsplit backward an iteration thus takes at
    least the path's passes plus M times the period of v (replicas that are dealt microbatches share the M), however
    many stages a device runs. With a split backward the weight gradients of the path may wait: its forwards count.
    """

    name = "heaviest_layer"

    def objective_s(self, query: BoundQuery) -> float | None:
        """Bound on the closed forms."""
        return min(_objective(query, size, count) for size, count in query.batches)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Bound on the simulated iteration time."""
        return min(lowered(_iteration(query, size, count)) for size, count in query.batches)


def _objective(query: BoundQuery, size: int, count: int) -> float:
    least = least_seconds(query, size, count)
    period = max(least.period_s)
    if query.objective is Objective.THROUGHPUT:
        return lowered(period / size)
    return lowered(sum(least.pass_s) + (count - 1) * period)


def _iteration(query: BoundQuery, size: int, count: int) -> float:
    least: LeastSeconds = least_seconds(query, size, count)
    before = longest_path_before(query, least.forward_s if query.splits_backward else least.pass_s)
    return max(b + count * p for b, p in zip(before, least.period_s, strict=True))
