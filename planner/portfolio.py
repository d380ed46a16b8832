"""The portfolio: which optimizers run, in which order, for how long, and for which variants of a joint search.

Every optimizer gets the candidates of those before it; the portfolio stops when one has proven its best plan optimal.
Variants (tensor degrees) run from the one with the smallest bound on; those whose bound is no better than a plan that
is known are closed without a search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from planner.bounds import BOUNDS, BoundQuery
from planner.errors import InputError
from planner.joint import variants
from planner.optimizers.base import OPTIMIZERS, Candidate, Clock, Outcome, SearchContext, refusal
from planner.options import GENERAL_MODELS
from planner.result import Contribution

PORTFOLIO = ("uniform", "ideal_dp", "chain_dp", "multilevel", "order_dp", "milp", "hierarchical_dp")
"""What `auto` runs, in order, until one has proven its plan optimal."""

WARM_STARTS = {"milp": ("chain_dp",)}
"""What runs before a named optimizer, to give it a plan to start from."""

INSTEAD_OF = {"milp": "order_dp"}
"""What needs no run after the other: where order search applies, `planner.bounds.bottleneck` proves more."""

SHARES = {"order_dp": 1 / 3}
"""The share of the time left that an optimizer may take, where bounds are to follow; the others may take all of it."""

EASY_FIRST = 1.5
"""A variant may take this many times its equal share of the time left: the most promising ones come first."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """One variant with what came of it. `floor_s`: its bound in the search model before any search."""

    context: SearchContext
    floor_s: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    contributions: tuple[Contribution, ...] = ()

    @property
    def best_s(self) -> float:
        """The smallest objective found."""
        return min((c.objective_s for o in self.outcomes.values() for c in o.candidates), default=math.inf)


def search(context: SearchContext) -> list[Searched]:
    """All variants, those that were closed by their bound without outcomes."""
    waiting = [Searched(context=each, floor_s=floor(each)) for each in _contexts(context)]
    waiting.sort(key=lambda searched: searched.floor_s)
    done: list[Searched] = []
    for number, each in enumerate(waiting):
        known = min((searched.best_s for searched in done), default=math.inf)
        if each.floor_s >= known:
            done.append(each)
            continue
        left = context.clock.left_s()
        share = Clock(min(left, EASY_FIRST * left / (len(waiting) - number)))
        outcomes, contributions = _run(replace(each.context, clock=share))
        done.append(replace(each, outcomes=outcomes, contributions=contributions))
    return done


def floor(context: SearchContext) -> float:
    """The largest quick bound on the variant's objective; 0 where no bound holds for the search model."""
    if context.search_model not in GENERAL_MODELS:
        return 0.0
    values = [bound.objective_s(query_of(context)) for bound in BOUNDS]
    return max((value for value in values if value is not None), default=0.0)


def query_of(context: SearchContext, **known: object) -> BoundQuery:
    """What is asked of the bounds: every plan that the request allows."""
    return BoundQuery(
        problem=context.problem,
        costs=context.costs,
        objective=context.options.objective,
        batches=tuple(context.batches()),
        replication=context.options.replication,
        replica_mode=context.options.replica_mode,
        schedules=context.schedules,
        search_model=context.search_model,
        searched_levels=context.levels,
        seed=context.options.seed,
        **known,  # type: ignore[arg-type]
    )


def _contexts(context: SearchContext) -> Iterator[SearchContext]:
    """One context per variant; they share the cost model, which prices whatever degrees a plan has."""
    for problem in variants(context.problem, context.options):
        yield replace(context, problem=problem)


def _run(context: SearchContext) -> tuple[dict[str, Outcome], tuple[Contribution, ...]]:
    """Run the named optimizer, or the portfolio."""
    named = context.options.optimizer
    outcomes, contributions, reason = dict[str, Outcome](), list[Contribution](), ""
    for name in PORTFOLIO if named == "auto" else (*WARM_STARTS.get(named, ()), named):
        if named == "auto" and (_is_solved(outcomes) or INSTEAD_OF.get(name) in outcomes):
            continue
        reason = refusal(OPTIMIZERS[name], context)
        if reason and name == named:
            raise InputError(f"optimizer {name!r} cannot search this problem: {reason}", pointer="/options/optimizer")
        if not reason:
            found, seconds = _timed(lambda name=name: OPTIMIZERS[name].search(_share(context, name, outcomes)))  # type: ignore[misc]
            outcomes[name] = found
            contributions.append(_contribution(context, name, found, seconds))
    if not outcomes and context.search_model not in GENERAL_MODELS:
        raise InputError(
            f"no optimizer searches this problem in the search model {context.search_model}: {reason}",
            pointer="/options/search_model",
        )
    return outcomes, tuple(contributions)


def _is_solved(outcomes: dict[str, Outcome]) -> bool:
    return any(outcome.exact for outcome in outcomes.values())


def _share(context: SearchContext, name: str, outcomes: dict[str, Outcome]) -> SearchContext:
    """The context with what is known, and with the optimizer's share of the time."""
    known = tuple(candidate for outcome in outcomes.values() for candidate in outcome.candidates)
    named = context.options.optimizer != "auto"
    share = 1.0 if named else SHARES.get(name, 1.0)
    clock = context.clock if share == 1.0 else Clock(share * context.clock.left_s())
    return replace(context, incumbents=known, clock=clock)


def _timed(search: Callable[[], Outcome]) -> tuple[Outcome, float]:
    started = time.monotonic()
    outcome = search()
    return outcome, time.monotonic() - started


def _contribution(context: SearchContext, name: str, outcome: Outcome, seconds: float) -> Contribution:
    best: Candidate | None = min(outcome.candidates, key=lambda c: c.objective_s, default=None)
    return Contribution(
        optimizer=name,
        tensor=context.problem.workload.tensor,
        objective_s=best.objective_s if best else None,
        bound_s=outcome.bound_s,
        exact=outcome.exact,
        runtime_s=seconds,
    )
