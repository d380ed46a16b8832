"""Finalists: the best candidates of all searches, under every allowed schedule, simulated, verified and ranked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

from planner.optimizers.base import Candidate, SearchContext
from planner.options import Objective
from planner.plan import Plan
from planner.portfolio import OTHER_PLANS, Searched
from planner.result import RunnerUp
from planner.schedules import SCHEDULES, Placement
from planner.simulation.estimate import simulate_plan
from planner.timeline import Estimate
from planner.verify import verify

ROUNDING = 1e-9
"""Values that differ by less, relatively, are equal: they were summed in another order."""

TIE = 0.03
"""Predicted times that differ by less are ties: predictions are no better than that."""

MAX_SIMULATED_ACTIONS = 300_000
"""Finalists after the first are simulated while their actions sum up to at most this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A candidate with who found it and what the simulator says."""

    candidate: Candidate
    found_by: str
    estimate: Estimate


def finalists(context: SearchContext, searched: list[Searched]) -> list[Finalist]:
    """At most `num_finalists`, the best first."""
    found: list[Finalist] = []
    seen: set[str] = set()
    actions = 0
    for candidate, name in _candidates(searched):
        key = repr(
            (candidate.plan.stages, candidate.plan.microbatch_size, name in OTHER_PLANS and candidate.plan.schedule)
        )
        actions += len(candidate.plan.stages) * candidate.plan.num_microbatches * len(context.schedules)
        late = context.clock.expired() or actions > MAX_SIMULATED_ACTIONS
        if key in seen or len(found) >= context.options.num_finalists or (found and late):
            continue
        seen.add(key)
        simulated = _best_schedule(context, candidate)
        if simulated is not None:
            found.append(Finalist(candidate=simulated[0], found_by=name, estimate=simulated[1]))
    by_objective = context.options.objective is Objective.THROUGHPUT
    return sorted(found, key=lambda f: _finalist_rank(f, by_objective))


def runner_up(best: Finalist, other: Finalist) -> RunnerUp:
    """A finalist that lost, and why."""
    mine, theirs = best.estimate.iteration_time_s, other.estimate.iteration_time_s
    slower = theirs / mine - 1.0 if mine else 0.0
    if abs(slower) <= TIE:
        reason = f"a tie: {100 * slower:+.2f} % simulated, below the {100 * TIE:.0f} % that predictions can tell apart"
    else:
        reason = f"{100 * slower:.1f} % slower in simulation"
    return RunnerUp(
        plan=other.candidate.plan,
        objective_s=other.candidate.objective_s,
        iteration_time_s=theirs,
        reason=f"{reason}; {len(other.candidate.plan.stages)} stages, {other.estimate.num_devices_used} devices",
    )


def _candidates(searched: list[Searched]) -> Iterator[tuple[Candidate, str]]:
    """Every candidate with its optimizer: in turn the best of those with one stage per device group and of the others.

    The closed form is made for the former and overrates what the latter take.
    """
    named = [(c, name) for each in searched for name, outcome in each.outcomes.items() for c in outcome.candidates]
    named.sort(key=lambda pair: _candidate_rank(pair[0]))
    kinds = [[pair for pair in named if (pair[1] in OTHER_PLANS) == other] for other in (False, True)]
    yield from (pair for both in zip_longest(*kinds) for pair in both if pair is not None)


def _best_schedule(context: SearchContext, candidate: Candidate) -> tuple[Candidate, Estimate] | None:
    """The candidate under the fastest schedule that is allowed and fits; the first of those that tie.

    First comes the optimizer's own, frugal one, but with fewer microbatches than stages the last: engines have no
    1F1B for that.
    """
    virtual = SCHEDULES[candidate.plan.schedule].placement is not Placement.LINE
    others = [] if virtual else [s for s in context.schedules if s != candidate.plan.schedule]
    ordered = [candidate.plan.schedule, *others]
    if candidate.plan.num_microbatches < len(candidate.plan.stages):
        ordered.reverse()
    best: tuple[Candidate, Estimate] | None = None
    for schedule in ordered:
        if best is not None and context.clock.expired():
            break
        trial = replace(candidate, plan=replace(candidate.plan, schedule=schedule))
        if verify(trial.plan, context.problem, context.costs) or _misfits(context, trial.plan):
            continue
        _, priced = simulate_plan(context.problem, trial.plan, context.costs)
        if best is None or priced.iteration_time_s < best[1].iteration_time_s * (1 - ROUNDING):
            best = (trial, priced)
    return best


def _misfits(context: SearchContext, plan: Plan) -> bool:
    """Whether the target cannot run the plan, or it is cut elsewhere than at the pins."""
    starts = tuple(min(context.problem.index.positions(stage.layers)) for stage in plan.stages[1:])
    pinned = tuple(sorted(context.problem.index.position[name] for name in context.options.cuts))
    elsewhere = bool(pinned) and tuple(sorted(starts)) != pinned
    return elsewhere or (context.target is not None and context.target.misfit(plan, context.problem) != "")


def _candidate_rank(candidate: Candidate) -> tuple[float, int, int]:
    stages = candidate.plan.stages
    return candidate.objective_s, sum(len(g) for s in stages for g in s.replicas), len(stages)


def _finalist_rank(finalist: Finalist, by_objective: bool) -> tuple[float, int, int]:
    seconds = finalist.candidate.objective_s if by_objective else finalist.estimate.iteration_time_s
    return seconds, finalist.estimate.num_devices_used, finalist.estimate.peak_memory_bytes
