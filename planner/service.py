"""`plan`, `answer`, `estimate`, `simulate`: where the parts meet."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from planner.certificates import PROVEN_GAP, certificates
from planner.checks import check_number
from planner.codec import fingerprint
from planner.costs.model import CostModel, PricedPlan
from planner.errors import InputError, InternalError
from planner.explanations.bottleneck import explained_time
from planner.explanations.remedies import remedied
from planner.explanations.what_ifs import what_ifs
from planner.finalists import Finalist, finalists, runner_up
from planner.goals import GOALS, Answer
from planner.goals.base import check_goal_options
from planner.joint import settled, variants
from planner.optimizers.base import OPTIMIZERS, Clock, SearchContext, is_virtual
from planner.optimizers.explain import explain, no_shape, provably_exceeds
from planner.options import MAX_NUM_FINALISTS, MAX_TIME_LIMIT_S, SEARCHED_OBJECTIVES, SearchOptions
from planner.plan import Plan
from planner.portfolio import INTERRUPTED, Searched, search
from planner.problem import Problem
from planner.result import Infeasibility, PlanResult, SearchReport, Status
from planner.schedules import SCHEDULES
from planner.simulation.estimate import estimate_priced, simulate_priced
from planner.targets import check_target
from planner.timeline import Estimate, Timeline
from planner.verify import priced_and_verified, verify

SHARE_OF_WHAT_IFS, LEAST_WHAT_IFS_S = 0.2, 0.5
"""What-ifs of an answer may take this share of its search's time, and so many seconds more."""


BROUGHT = "custom"
"""The schedule that only plans which somebody brings can have."""


def plan(problem: Problem, options: SearchOptions | None = None) -> PlanResult:
    """Search, simulate the best candidates, verify, rank, certify.

    Returns a `PlanResult`: with a plan, or with `report.status` infeasible (and why) or limit. Raises InputError for
    options that make no sense and InternalError when a chosen plan does not verify. The search ends soon after
    `options.time_limit_s`.
    """
    options = options or SearchOptions()
    check_options(problem, options)
    if options.objective not in SEARCHED_OBJECTIVES:
        raise InputError(
            f"the objective {options.objective} is a goal of several searches: ask planner.service.answer",
            pointer="/options/objective",
        )
    options = settled(problem, options)
    started = time.monotonic()
    context = SearchContext(
        problem=problem, options=options, costs=CostModel(problem), clock=Clock(options.time_limit_s)
    )
    searched = search(context)
    ranked = finalists(context, searched)
    if not ranked:
        return _without_plan(context, searched, started)
    return _with_plan(context, searched, ranked, started)


def answer(problem: Problem, options: SearchOptions | None = None) -> Answer:
    """`plan` for every objective, with an explanation of the time.

    Goals (`planner.goals`) may change the problem: the answer carries the one that its plan belongs to. Errors as in
    `plan`.
    """
    options = options or SearchOptions()
    check_options(problem, options)
    if options.objective in SEARCHED_OBJECTIVES:
        found = Answer(problem=problem, result=plan(problem, options))
    else:
        found = GOALS[options.objective].answer(problem, options, plan)
    result = replace(found.result, planner_version=planner_version())
    return replace(found, result=_explained(found.problem, result, options))


def _explained(problem: Problem, result: PlanResult, options: SearchOptions) -> PlanResult:
    """The result with what bounds its time and what would help."""
    if result.plan is None or result.estimate is None or INTERRUPTED in result.report.notes:
        return result
    explanation = explained_time(problem, result.plan)
    limit_s = min(options.time_limit_s, SHARE_OF_WHAT_IFS * result.report.runtime_s + LEAST_WHAT_IFS_S)
    trials = what_ifs(problem, result.plan, result.estimate, options, limit_s)
    return replace(result, explanation=replace(explanation, what_ifs=tuple(trials)))


def estimate(problem: Problem, plan: Plan) -> Estimate:
    """Price and simulate a plan that somebody brings. InputError when it is malformed (`verify` says what else)."""
    return estimate_priced(problem, _priced(problem, plan))


def simulate(problem: Problem, plan: Plan) -> Timeline:
    """The timeline of one iteration of the plan."""
    return simulate_priced(problem, _priced(problem, plan))[0]


def check_options(problem: Problem, options: SearchOptions) -> None:
    """Names that exist, counts within what the problem has."""
    check_number(options.time_limit_s, "time_limit_s", "/options/time_limit_s", low=0.01, high=MAX_TIME_LIMIT_S)
    check_number(options.num_finalists, "num_finalists", "/options/num_finalists", low=1, high=MAX_NUM_FINALISTS)
    _check_name(options.optimizer, OPTIMIZERS.names(), "optimizer")
    _check_name(options.schedule, SCHEDULES.names(), "schedule")
    if options.schedule == BROUGHT:
        raise InputError(
            f"the schedule {BROUGHT!r} is not searched: it comes with a plan that lists its actions; use estimate",
            pointer="/options/schedule",
        )
    check_target(problem, options)
    check_goal_options(problem, options)
    num_stages = settled(problem, options).num_stages
    if num_stages is None:
        return
    sizes = [each.workload.tensor * each.workload.context for each in variants(problem, options)]
    several = is_virtual(options.schedule)
    groups = len(problem.cluster.devices) // min(sizes)
    most = len(problem.index) if several else min(len(problem.index), groups)
    if not 1 <= num_stages <= most:
        raise InputError(
            f"num_stages is {num_stages}: it must be between 1 and {most} ({len(problem.index)} layers, "
            f"{groups} device groups); change it or the cluster",
            pointer="/options/num_stages",
        )


def _check_name(name: str, known: tuple[str, ...], kind: str) -> None:
    if name != "auto" and name not in known:
        raise InputError(f"unknown {kind} {name!r}: use auto, {', '.join(known)}", pointer=f"/options/{kind}")


def _priced(problem: Problem, plan: Plan) -> PricedPlan:
    """The prices of a plan that is well-formed, if too large for the memory."""
    priced, found = priced_and_verified(plan, problem)
    fatal = [v for v in found if v.code != "memory"]
    if fatal or priced is None:
        raise InputError("; ".join(v.message for v in fatal[:3]), pointer="/plan")
    return priced


def _with_plan(context: SearchContext, searched: list[Searched], ranked: list[Finalist], started: float) -> PlanResult:
    best = ranked[0]
    proven_by = certificates(context, searched, best)
    own = next(c for c in proven_by if c.quantity == "objective_s")
    proven = own.gap <= PROVEN_GAP
    chosen = replace(best.candidate.plan, problem_fingerprint=fingerprint(context.problem))
    wrong = verify(chosen, context.problem, context.costs)
    if wrong:
        raise InternalError(f"the chosen plan does not verify: {wrong[0].message}")
    report = _report(
        context,
        searched,
        started,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective_s=best.candidate.objective_s,
        bound_s=own.bound_s,
        gap=own.gap,
        certificates=proven_by,
        optimizer=best.found_by,
        notes=_notes(context, ranked),
    )
    return PlanResult(
        plan=chosen,
        estimate=best.estimate,
        report=report,
        runners_up=tuple(runner_up(best, other) for other in ranked[1:]),
        planner_version=planner_version(),
    )


def _without_plan(context: SearchContext, searched: list[Searched], started: float) -> PlanResult:
    """Infeasible when that is proven for every variant, else the limit. The variant that comes closest explains it."""
    reasons = [(explain(each.context), each) for each in searched]
    proven = all(reason is not None and _proven(each, reason) for reason, each in reasons)
    known = [(reason, each) for reason, each in reasons if reason is not None]
    closest = min(known, key=lambda pair: pair[0].shortfall_bytes, default=None)
    reason = None if closest is None else remedied(closest[0], replace(closest[1].context, clock=context.clock))
    if context.is_virtual and (reason is None or reason.constraint != "memory"):
        reason, proven = no_shape(context), False
    report = _report(
        context,
        searched,
        started,
        status=Status.INFEASIBLE if proven else Status.LIMIT,
        objective_s=None,
        bound_s=None,
        gap=None,
        certificates=(),
        optimizer=context.options.optimizer,
        infeasibility=reason,
    )
    return PlanResult(plan=None, estimate=None, report=report, planner_version=planner_version())


def _proven(each: Searched, reason: Infeasibility) -> bool:
    """No batch for the expert degree, an exact search without a plan, or on a chain the memory relaxation proves it."""
    nothing = any(outcome.exact and not outcome.candidates for outcome in each.outcomes.values())
    if nothing or not each.context.batches():
        return True
    context = each.context
    return reason.constraint == "memory" and context.problem.index.is_chain() and provably_exceeds(context)


def _report(
    context: SearchContext,
    searched: list[Searched],
    started: float,
    *,
    notes: tuple[str, ...] = (),
    **fields: object,
) -> SearchReport:
    outcomes = [outcome for each in searched for outcome in each.outcomes.values()]
    remarks = [note for outcome in outcomes for note in outcome.notes]
    return SearchReport(
        objective=context.options.objective.value,
        search_model=context.search_model.value,
        solver=", ".join(dict.fromkeys(o.solver for o in outcomes if o.solver)),
        runtime_s=time.monotonic() - started,
        seed=context.options.seed,
        contributions=tuple(each for variant in searched for each in variant.contributions),
        notes=(*notes, *dict.fromkeys(remarks)),
        **fields,  # type: ignore[arg-type]
    )


def _notes(context: SearchContext, ranked: list[Finalist]) -> tuple[str, ...]:
    """What a reader should know about the winner."""
    best, notes = ranked[0], []
    idle = best.estimate.num_devices_idle
    if idle:
        notes.append(
            f"{idle} of {len(context.problem.cluster.devices)} devices stay idle: no plan found is faster with them"
        )
    if len({len(stage.replicas) for stage in best.candidate.plan.stages}) > 1:
        notes.append("replication differs between stages, which PyTorch cannot run: --replication equal rules it out")
    equal = next((f for f in ranked if f.found_by == "uniform"), None)
    if equal is not None and equal is not best and best.estimate.iteration_time_s:
        ratio = equal.estimate.iteration_time_s / best.estimate.iteration_time_s
        notes.append(f"the best equal split takes {ratio:.3f} times as long")
    return tuple(notes)


def planner_version() -> str:
    """The installed version of PipePlan."""
    try:
        return version("pipeplan")
    except PackageNotFoundError:
        return "unknown"
