"""`order_dp`: dynamic programming over pools of topological orders, with local search, for the bottleneck.

The same problem as `ideal_dp`, for graphs with too many ideals: the recurrence runs over the prefixes of many
topological orders and over neighbours of the best boundaries, and single groups are moved between stages
(planner.partition.upper_bound). It proves nothing, and goes on until the time limit or `MAX_ITERATIONS` rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.errors import LimitError
from planner.optimizers._bottleneck import SCOPE, BatchSearch, refusal
from planner.optimizers.base import OPTIMIZERS, Clock, Outcome, SearchContext
from planner.partition.exact import heuristic

MAX_ITERATIONS = 200
"""Rounds of local search and recombination for each microbatch size."""


@OPTIMIZERS.register
class OrderDP:
    """A good plan for any graph, for the bottleneck in `blocking`, on any mix of device types."""

    name = "order_dp"

    def supports(self, context: SearchContext) -> str:
        """As `ideal_dp`."""
        return refusal(context, self.name)

    def search(self, context: SearchContext) -> Outcome:
        """One search per microbatch size, each with its share of the time that is left."""
        searches, notes = [], list[str]()
        batches = context.batches()
        for number, batch in enumerate(batches):
            expired = Clock(context.clock.left_s() / (len(batches) - number)).expired
            searches.append(BatchSearch(context, batch))
            try:
                _search(searches[-1], expired)
            except LimitError as fault:
                notes.append(str(fault))
        found = sorted((c for search in searches for c in search.candidates), key=lambda c: c.objective_s)
        return Outcome(
            candidates=tuple(found),
            exact=False,
            scope=SCOPE,
            finished=not context.clock.expired() and not notes,
            notes=tuple(dict.fromkeys(notes)),
        )


def _search(search: BatchSearch, expired: Callable[[], bool]) -> None:
    """With the relaxed memory first; with all of it where that plan does not fit."""
    for whole_memory in (False, True):
        instance = search.instance(whole_memory=whole_memory)
        found = heuristic(instance, seed=search.context.options.seed, max_iterations=MAX_ITERATIONS, expired=expired)
        if found is not None and search.keep(instance, found):
            return
