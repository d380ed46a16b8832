"""`ideal_dp`: dynamic programming over all ideals of the graph (Tarnawski et al. 2020), for the bottleneck.

Minimises the throughput objective in the `blocking` search model over stages of any shape, one device each, on any mix
of device types: which layers form a stage, which type runs it, how many stages there are. The method is
`planner.partition.exact` (docs/exact.md): contractions, an upper bound, windows, one pass. It works as long as the
graph has few ideals (chains with skips and short branches); otherwise it says so and keeps the upper bound's plan.

Exact within its scope, and the value is a lower bound, except where the recurrence has to simplify: then it leaves out
(latency of messages, the backward overhead of stages that only partly run backward, microbatches in flight and
workspace), so that its value is still a lower bound, and the plan is priced by the cost model as always. When the plan
that leaves memory out does not fit, a second search counts all of it and finds a plan that fits; it may not be optimal.
"""

from __future__ import annotations

import math

from planner.optimizers._bottleneck import SCOPE, BatchSearch, covers, refusal
from planner.optimizers.base import OPTIMIZERS, Outcome, SearchContext
from planner.partition.exact import Solution, minimise

MAX_IDEALS = 400_000
"""Ideals that are enumerated, about a second. The pass over those alive is ended by the time limit."""
EXACT = 1 + 1e-9
"""Values closer than this are equal: the recurrence subtracts prefix sums."""


@OPTIMIZERS.register
class IdealDP:
    """Exact on graphs with few ideals, for the bottleneck in `blocking`, on any mix of device types."""

    name = "ideal_dp"

    def supports(self, context: SearchContext) -> str:
        """Throughput in `blocking` between interchangeable links; nothing that couples stages in other ways."""
        return refusal(context, self.name)

    def search(self, context: SearchContext) -> Outcome:
        """One search per microbatch size; a second one where the plan of the first does not fit into memory."""
        searches = [_Search(context, batch) for batch in context.batches()]
        found = sorted((c for search in searches for c in search.candidates), key=lambda c: c.objective_s)
        bound = min(search.bound_s for search in searches)
        return Outcome(
            candidates=tuple(found),
            exact=covers(context)
            and bool(found or math.isinf(bound))
            and (not found or found[0].objective_s <= bound * EXACT),
            scope=SCOPE,
            bound_s=bound if covers(context) and 0 < bound < math.inf else None,
            finished=not any(search.notes for search in searches),
            notes=tuple(dict.fromkeys(note for search in searches for note in search.notes)),
        )


class _Search(BatchSearch):
    """One microbatch size: `candidates` that fit (none or one), and a lower bound (infinite: nothing can fit)."""

    def __init__(self, context: SearchContext, batch: tuple[int, int]) -> None:
        super().__init__(context, batch)
        self.notes: list[str] = []
        light = self._solve(whole_memory=False)
        self.bound_s = light.bound_s / batch[0]
        if light.best is not None and not self.candidates:
            self._solve(whole_memory=True)

    def _solve(self, *, whole_memory: bool) -> Solution:
        """The best partition of the instance; kept if its plan fits."""
        instance = self.instance(whole_memory=whole_memory)
        context = self.context
        solution = minimise(instance, seed=context.options.seed, expired=context.clock.expired, max_ideals=MAX_IDEALS)
        self.notes += [solution.note] if solution.note else []
        if solution.best is not None:
            self.keep(instance, solution.best)
        return solution
