"""Certificates: the strongest bound on what a plan was ranked by, the least over all variants of the search.

Plans with one stage per device group and plans with several are bounded apart: different bounds know them. Also over
the plans under the winner's own schedule, where that is a stronger one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.bounds import BOUNDS, BoundQuery
from planner.bounds.bottleneck import strongest
from planner.errors import InternalError
from planner.finalists import ROUNDING, Finalist
from planner.optimizers.base import Clock, SearchContext
from planner.options import GENERAL_MODELS, Objective
from planner.portfolio import OTHER_PLANS, Searched, query_of
from planner.result import Certificate
from planner.schedules import SCHEDULES, Placement

PROVEN_GAP = 2e-6
"""A relative gap up to which a plan counts as proven optimal in its search model: what solvers' tolerances leave."""

BOUND_GRACE_S = 1.2
"""How long bounds may go on after the time limit."""

LEAST_BOUND_S = 0.2
"""What they may take in any case."""

EVERYTHING = "all plans at the allowed batch sizes, on whole device groups"
FOR_ONE_DEGREE = "virtual"
ONE_DEGREE = "with several stages on a group only at one replication degree"
SLOW_BOUNDS = ("pipeline", "virtual")
"""Asked last, and only where the others leave a gap."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A bound in seconds, what proved it and over which plans."""

    value_s: float
    method: str
    scope: str


def certificates(context: SearchContext, searched: list[Searched], best: Finalist) -> tuple[Certificate, ...]:
    """On the objective in the search model, then on the simulated time where that is what is sought."""
    objective = min((_objective(each, best, context.clock) for each in searched), key=_value)
    found = [_certificate(context, "objective_s", best.candidate.objective_s, objective)]
    if context.options.objective is Objective.ITERATION_TIME:
        clock = Clock(_time_for_bounds(context.clock))
        seconds = best.estimate.iteration_time_s
        simulated = _simulated(searched, seconds, clock, ())
        found.append(_certificate(context, "iteration_time_s", seconds, simulated))
        schedule = best.candidate.plan.schedule
        if simulated.value_s < seconds:
            alike = _simulated(searched, seconds, clock, (schedule,))
            found += [_certificate(context, "iteration_time_s", seconds, alike)] * (alike.value_s > simulated.value_s)
    return tuple(found)


def _time_for_bounds(clock: Clock) -> float:
    """Seconds until bounds have to be there."""
    return max(LEAST_BOUND_S, clock.left_s(BOUND_GRACE_S))


def _value(proven: Proven) -> float:
    return proven.value_s


def _objective(each: Searched, best: Finalist, clock: Clock) -> Proven:
    """The variant's strongest bound in the search model; with the time left where that leaves a gap.

    What optimizers prove is about plans with one stage per device group: nothing for a winner of another kind.
    """
    value, other = best.candidate.objective_s, best.found_by in OTHER_PLANS
    outcomes = {} if other else each.outcomes
    found = [Proven(o.bound_s, name, o.scope) for name, o in outcomes.items() if o.bound_s is not None]
    if each.context.search_model in GENERAL_MODELS:
        query = query_of(each.context, upper_s=value)
        quick = ((bound.objective_s(query), bound.name) for bound in BOUNDS)
        found += [Proven(seconds, name, EVERYTHING) for seconds, name in quick if seconds is not None]
    strong = max(found, key=_value)
    if strong.value_s >= value * (1 - PROVEN_GAP) or each.context.search_model not in GENERAL_MODELS:
        return strong
    slow = strongest(query_of(each.context, upper_s=value, limit_s=_time_for_bounds(clock)))
    return strong if slow is None else max(strong, Proven(*slow, EVERYTHING), key=_value)


def _simulated(searched: list[Searched], seconds: float, clock: Clock, schedules: tuple[str, ...]) -> Proven:
    """The least over the variants of their bounds on the simulated time; `schedules`: of plans under these alone."""
    found, enough = list[Proven](), seconds
    for each in searched:
        query = query_of(each.context, expired=clock.expired)
        for family in _families(schedules or query.schedules):
            found.append(_strongest(replace(query, schedules=family, iteration_upper_s=enough), enough))
            enough = min(enough, found[-1].value_s)
    words = [EVERYTHING, *[ONE_DEGREE] * any(proven.method == FOR_ONE_DEGREE for proven in found)]
    return replace(
        min(found, key=_value), scope=", ".join([*words, *[f"under {', '.join(schedules)}"] * bool(schedules)])
    )


def _families(schedules: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The schedules with one stage per device group, and those with several: what is known of them differs."""
    lines = tuple(name for name in schedules if SCHEDULES[name].placement is Placement.LINE)
    others = tuple(name for name in schedules if name not in lines)
    return [family for family in (lines, others) if family]


def _strongest(query: BoundQuery, seconds: float) -> Proven:
    """The strongest bound on the simulated time, at most `seconds`; stops when that is met."""
    best = Proven(-math.inf, "none", EVERYTHING)
    for bound in sorted(BOUNDS, key=lambda bound: bound.name in SLOW_BOUNDS):
        value = bound.iteration_s(query)
        if value is not None and value > best.value_s:
            best = Proven(value, bound.name, EVERYTHING)
        if best.value_s >= seconds:
            break
    return best


def _certificate(context: SearchContext, quantity: str, value: float, proven: Proven) -> Certificate:
    bound = proven.value_s
    if bound > value * (1 + ROUNDING):
        raise InternalError(f"the bound {proven.method!r} says {bound!r} s, but a plan takes {value!r} s")
    bound = min(bound, value)
    return Certificate(
        quantity=quantity,
        search_model=context.search_model.value if quantity == "objective_s" else "simulation",
        bound_s=bound,
        gap=value / bound - 1.0 if bound else 0.0,
        method=proven.method,
        scope=proven.scope,
    )
