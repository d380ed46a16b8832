"""The work bound: all layers have to be executed, and there are only so many device groups."""

from __future__ import annotations

from planner.bounds._layers import least_seconds
from planner.bounds.base import BOUNDS, BoundQuery, lowered
from planner.options import Objective


@BOUNDS.register
class WorkBound:
    """One microbatch needs at least W = sum of the layers' least group-seconds; N groups give N seconds a second.

    Proof. Overheads, collectives and transfers only add. So the busiest group has at least W/N per microbatch: the
    period is at least W/N in every search model, and M microbatches take a group at least M W/N in any schedule,
    split backward or not. A closed form adds the passes of one microbatch, at least the sum of their least seconds.
    The minimum over the allowed batches holds for all of them.
    """

    name = "work"

    def objective_s(self, query: BoundQuery) -> float | None:
        """Bound on the closed forms."""
        return min(_objective(query, size, count) for size, count in query.batches)

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Bound on the simulated iteration time."""
        return min(lowered(count * _period(query, size, count)) for size, count in query.batches)


def _period(query: BoundQuery, size: int, count: int) -> float:
    least = least_seconds(query, size, count)
    return sum(least.group_s) / max(1, sum(query.groups.values()))


def _objective(query: BoundQuery, size: int, count: int) -> float:
    period = _period(query, size, count)
    if query.objective is Objective.THROUGHPUT:
        return lowered(period / size)
    return lowered(sum(least_seconds(query, size, count).pass_s) + (count - 1) * period)
