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
from planner.simulation.effort import num_tasks, seconds_to_simulate
from planner.simulation.estimate import estimate_priced
from planner.timeline import Estimate
from planner.verify import priced_and_verified

ROUNDING = 1e-9
"""Values that differ by less, relatively, are equal: they were summed in another order."""

TIE = 0.03
"""Predicted times that differ by less are ties: predictions are no better than that."""

GRACE_S = 1.0
"""How long simulations may go on after the time limit."""

FOR_FEW_MICROBATCHES = "gpipe"

MAX_SIMULATED_ACTIONS = 1_000_000
"""Finalists after the first are simulated while their actions sum up to at most this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A candidate with who found it and what the simulator says."""

    candidate: Candidate
    found_by: str
    estimate: Estimate


def finalists(context: SearchContext, searched: list[Searched]) -> list[Finalist]:
    """The best first: up to `num_finalists` of every source of candidates are simulated, as many are returned."""
    found: list[Finalist] = []
    seen: set[str] = set()
    actions = 0
    for candidate, name in _affordable(context, list(_candidates(searched, context.options.num_finalists))):
        key = repr(
            (candidate.plan.stages, candidate.plan.microbatch_size, name in OTHER_PLANS and candidate.plan.schedule)
        )
        actions += len(candidate.plan.stages) * candidate.plan.num_microbatches * len(context.schedules)
        if key in seen or (found and (actions > MAX_SIMULATED_ACTIONS or _too_late(context, candidate.plan))):
            continue
        seen.add(key)
        simulated = _best_schedule(context, candidate)
        if simulated is not None:
            found.append(Finalist(candidate=simulated[0], found_by=name, estimate=simulated[1]))
    by_objective = context.options.objective is Objective.THROUGHPUT
    return sorted(found, key=lambda f: _finalist_rank(f, by_objective))[: context.options.num_finalists]


def _affordable(context: SearchContext, named: list[tuple[Candidate, str]]) -> list[tuple[Candidate, str]]:
    """The candidates whose simulation ends in time, if there are any; else the one with the fewest tasks."""
    quick = [pair for pair in named if _ends_in_time(context, pair[0].plan)]
    return quick or sorted(named, key=lambda pair: num_tasks(context.problem, pair[0].plan))[:1]


def _ends_in_time(context: SearchContext, plan: Plan) -> bool:
    """Whether a simulation that begins now ends soon enough after the limit."""
    return seconds_to_simulate(context.problem, plan) <= context.clock.left_s(GRACE_S)


def _too_late(context: SearchContext, plan: Plan) -> bool:
    """Whether another simulation is not begun any more, where there is one already."""
    return context.clock.expired() or not _ends_in_time(context, plan)


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


def _candidates(searched: list[Searched], most: int) -> Iterator[tuple[Candidate, str]]:
    """Candidates with their optimizer: the best of every source, then the second best, and so on, `most` of each.

    A source is what was searched under one schedule, with groups of one kind: closed forms are made for one stage per
    device group and an unsplit backward, and overrate what others take.
    """
    named = [(c, name) for each in searched for name, outcome in each.outcomes.items() for c in outcome.candidates]
    sources: dict[object, list[tuple[Candidate, str]]] = {}
    for pair in sorted(named, key=lambda pair: _candidate_rank(pair[0])):
        first = pair[0].plan.stages[0]
        kind = (pair[0].plan.schedule, first.tensor, first.context, first.expert)
        sources.setdefault(kind, []).append(pair)
    yield from (pair for row in zip_longest(*(s[:most] for s in sources.values())) for pair in row if pair is not None)


def _best_schedule(context: SearchContext, candidate: Candidate) -> tuple[Candidate, Estimate] | None:
    """The candidate under the fastest schedule that is allowed and fits; the first of those that tie.

    For throughput the first one will do: the bottleneck is the same.
    """
    best: tuple[Candidate, Estimate] | None = None
    for schedule in _schedules(context, candidate.plan):
        by_objective = context.options.objective is Objective.THROUGHPUT
        if best is not None and (by_objective or _too_late(context, candidate.plan)):
            break
        trial = replace(candidate, plan=replace(candidate.plan, schedule=schedule))
        priced, wrong = priced_and_verified(trial.plan, context.problem, context.costs)
        if priced is None or wrong or _misfits(context, trial.plan):
            continue
        estimate = estimate_priced(context.problem, priced)
        if best is None or estimate.iteration_time_s < best[1].iteration_time_s * (1 - ROUNDING):
            best = (trial, estimate)
    return best


def _schedules(context: SearchContext, plan: Plan) -> list[str]:
    """The optimizer's own, frugal one first; for fewer microbatches than stages GPipe: no engine has 1F1B for that."""
    if SCHEDULES[plan.schedule].placement is not Placement.LINE:
        return [plan.schedule]
    few = plan.num_microbatches < len(plan.stages)
    names = dict.fromkeys((plan.schedule, *context.schedules))
    return sorted(names, key=lambda name: name != FOR_FEW_MICROBATCHES) if few else list(names)


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
