"""`plan`, `estimate`, `simulate`: where the parts meet."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from planner.bounds import BOUNDS, BoundQuery
from planner.checks import check_number
from planner.codec import fingerprint
from planner.costs.model import CostModel
from planner.errors import InputError, InternalError
from planner.optimizers.base import OPTIMIZERS, Candidate, Clock, Outcome, SearchContext, refusal
from planner.optimizers.explain import explain, provably_exceeds
from planner.options import GENERAL_MODELS, MAX_NUM_FINALISTS, MAX_TIME_LIMIT_S, Objective, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.result import Certificate, Infeasibility, PlanResult, RunnerUp, SearchReport, Status
from planner.schedules import SCHEDULES
from planner.simulation.estimate import simulate_plan
from planner.timeline import Estimate, Timeline
from planner.verify import verify

PROVEN_GAP = 1e-6
"""A relative gap up to which a plan counts as proven optimal in its search model."""

PORTFOLIO = ("uniform", "ideal_dp", "chain_dp", "multilevel", "order_dp", "milp", "hierarchical_dp")
"""What `auto` runs, in order, until one has proven its plan optimal."""

WARM_STARTS = {"milp": ("chain_dp",)}
"""What runs before a named optimizer, to give it a plan to start from."""

BOUND_GRACE_S = 1.5
"""Bounds may take this long even when the search has used up its time."""

ROUNDING = 1e-9
"""Values that differ by less, relatively, are equal: they were summed in another order."""

TIE = 0.03
"""Predicted times that differ by less are ties: predictions are no better than that."""

MAX_SIMULATED_ACTIONS = 300_000
"""Finalists after the first are simulated while their actions sum up to at most this many."""


def plan(problem: Problem, options: SearchOptions | None = None) -> PlanResult:
    """Search, simulate the best candidates, verify, rank, certify.

    Returns a `PlanResult`: with a plan, or with `report.status` infeasible (and why) or limit. Raises InputError for
    options that make no sense and InternalError when a chosen plan does not verify. The search ends soon after
    `options.time_limit_s`.
    """
    options = options or SearchOptions()
    check_options(problem, options)
    started = time.monotonic()
    context = SearchContext(
        problem=problem, options=options, costs=CostModel(problem), clock=Clock(options.time_limit_s)
    )
    outcomes = _search(context)
    finalists = _simulate(context, outcomes)
    if not finalists:
        return _without_plan(context, outcomes, started)
    return _with_plan(context, outcomes, finalists, started)


def estimate(problem: Problem, plan: Plan) -> Estimate:
    """Price and simulate a plan that somebody brings. InputError when it is malformed (`verify` says what else)."""
    return _simulated(problem, plan)[1]


def simulate(problem: Problem, plan: Plan) -> Timeline:
    """The timeline of one iteration of the plan."""
    return _simulated(problem, plan)[0]


def check_options(problem: Problem, options: SearchOptions) -> None:
    """Names that exist, counts within what the problem has."""
    check_number(options.time_limit_s, "time_limit_s", "/options/time_limit_s", low=0.01, high=MAX_TIME_LIMIT_S)
    check_number(options.num_finalists, "num_finalists", "/options/num_finalists", low=1, high=MAX_NUM_FINALISTS)
    _check_name(options.optimizer, OPTIMIZERS.names(), "optimizer")
    _check_name(options.schedule, SCHEDULES.names(), "schedule")
    if options.num_stages is None:
        return
    groups = len(problem.cluster.devices) // problem.workload.tensor
    most = min(len(problem.index), groups)
    if not 1 <= options.num_stages <= most:
        raise InputError(
            f"num_stages is {options.num_stages}: it must be between 1 and {most} ({len(problem.index)} layers, "
            f"{groups} device groups); change it or the cluster",
            pointer="/options/num_stages",
        )


def _check_name(name: str, known: tuple[str, ...], kind: str) -> None:
    if name != "auto" and name not in known:
        raise InputError(f"unknown {kind} {name!r}: use auto, {', '.join(known)}", pointer=f"/options/{kind}")


def _simulated(problem: Problem, plan: Plan) -> tuple[Timeline, Estimate]:
    fatal = [v for v in verify(plan, problem) if v.code != "memory"]
    if fatal:
        raise InputError("; ".join(v.message for v in fatal[:3]), pointer="/plan")
    return simulate_plan(problem, plan)


def _search(context: SearchContext) -> dict[str, Outcome]:
    """Run the named optimizer, or the portfolio: a baseline, the DP, and MILP or ideals where the DP proves nothing."""
    named = context.options.optimizer
    outcomes: dict[str, Outcome] = {}
    reason = ""
    for name in PORTFOLIO if named == "auto" else (*WARM_STARTS.get(named, ()), named):
        if named == "auto" and any(outcome.exact for outcome in outcomes.values()):
            break
        optimizer = OPTIMIZERS[name]
        reason = refusal(optimizer, context)
        if reason:
            if name == named:
                raise InputError(
                    f"optimizer {name!r} cannot search this problem: {reason}", pointer="/options/optimizer"
                )
            continue
        known = tuple(c for outcome in outcomes.values() for c in outcome.candidates)
        outcomes[name] = optimizer.search(replace(context, incumbents=known))
    if not outcomes and context.search_model not in GENERAL_MODELS:
        raise InputError(
            f"no optimizer searches this problem in the search model {context.search_model}: {reason}",
            pointer="/options/search_model",
        )
    return outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finalist:
    candidate: Candidate
    found_by: str
    estimate: Estimate


def _simulate(context: SearchContext, outcomes: dict[str, Outcome]) -> list[_Finalist]:
    """The best candidates of all optimizers, simulated, verified and ranked."""
    named = [(c, name) for name, outcome in outcomes.items() for c in outcome.candidates]
    named.sort(key=lambda pair: _candidate_rank(pair[0]))
    finalists: list[_Finalist] = []
    seen: set[str] = set()
    actions = 0
    for candidate, name in named:
        key = repr((candidate.plan.stages, candidate.plan.microbatch_size))
        actions += len(candidate.plan.stages) * candidate.plan.num_microbatches * len(context.schedules)
        late = context.clock.expired() or actions > MAX_SIMULATED_ACTIONS
        if key in seen or len(finalists) >= context.options.num_finalists or (finalists and late):
            continue
        seen.add(key)
        simulated = _best_schedule(context, candidate)
        if simulated is not None:
            finalists.append(_Finalist(candidate=simulated[0], found_by=name, estimate=simulated[1]))
    by_objective = context.options.objective is Objective.THROUGHPUT
    return sorted(finalists, key=lambda f: _finalist_rank(f, by_objective))


def _best_schedule(context: SearchContext, candidate: Candidate) -> tuple[Candidate, Estimate] | None:
    """The candidate under the fastest schedule that is allowed and fits; the first of those that tie.

    First comes the optimizer's own, frugal one, but with fewer microbatches than stages the last: engines have no
    1F1B for that.
    """
    others = [s for s in context.schedules if s != candidate.plan.schedule]
    ordered = [candidate.plan.schedule, *others]
    if candidate.plan.num_microbatches < len(candidate.plan.stages):
        ordered.reverse()
    best: tuple[Candidate, Estimate] | None = None
    for schedule in ordered:
        trial = replace(candidate, plan=replace(candidate.plan, schedule=schedule))
        if verify(trial.plan, context.problem, context.costs):
            continue
        _, priced = simulate_plan(context.problem, trial.plan, context.costs)
        if best is None or priced.iteration_time_s < best[1].iteration_time_s * (1 - ROUNDING):
            best = (trial, priced)
    return best


def _candidate_rank(candidate: Candidate) -> tuple[float, int, int]:
    stages = candidate.plan.stages
    return candidate.objective_s, sum(len(g) for s in stages for g in s.replicas), len(stages)


def _finalist_rank(finalist: _Finalist, by_objective: bool) -> tuple[float, int, int]:
    seconds = finalist.candidate.objective_s if by_objective else finalist.estimate.iteration_time_s
    return seconds, finalist.estimate.num_devices_used, finalist.estimate.peak_memory_bytes


def _with_plan(
    context: SearchContext, outcomes: dict[str, Outcome], finalists: list[_Finalist], started: float
) -> PlanResult:
    best = finalists[0]
    certificates = _certificates(context, outcomes, best)
    own = next(c for c in certificates if c.quantity == "objective_s")
    proven = own.gap <= PROVEN_GAP
    chosen = replace(best.candidate.plan, problem_fingerprint=fingerprint(context.problem))
    wrong = verify(chosen, context.problem, context.costs)
    if wrong:
        raise InternalError(f"the chosen plan does not verify: {wrong[0].message}")
    report = _report(
        context,
        outcomes,
        started,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective_s=best.candidate.objective_s,
        bound_s=own.bound_s,
        gap=own.gap,
        certificates=certificates,
        optimizer=best.found_by,
        notes=_notes(context, finalists),
    )
    return PlanResult(
        plan=chosen,
        estimate=best.estimate,
        report=report,
        runners_up=tuple(_runner_up(best, other) for other in finalists[1:]),
        planner_version=planner_version(),
    )


def _without_plan(context: SearchContext, outcomes: dict[str, Outcome], started: float) -> PlanResult:
    """Infeasible when that is proven, else the limit."""
    reason = explain(context)
    proven = reason is not None and _proven(context, outcomes, reason)
    report = _report(
        context,
        outcomes,
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


def _proven(context: SearchContext, outcomes: dict[str, Outcome], reason: Infeasibility) -> bool:
    """An exact search without a plan, or on a chain the memory relaxation, proves that there is none."""
    if any(outcome.exact and not outcome.candidates for outcome in outcomes.values()):
        return True
    return reason.constraint == "memory" and context.problem.index.is_chain() and provably_exceeds(context)


def _report(
    context: SearchContext,
    outcomes: dict[str, Outcome],
    started: float,
    *,
    notes: tuple[str, ...] = (),
    **fields: object,
) -> SearchReport:
    remarks = [note for outcome in outcomes.values() for note in outcome.notes]
    return SearchReport(
        objective=context.options.objective.value,
        search_model=context.search_model.value,
        solver=", ".join(dict.fromkeys(o.solver for o in outcomes.values() if o.solver)),
        runtime_s=time.monotonic() - started,
        seed=context.options.seed,
        notes=(*notes, *dict.fromkeys(remarks)),
        **fields,  # type: ignore[arg-type]
    )


def _certificates(context: SearchContext, outcomes: dict[str, Outcome], best: _Finalist) -> tuple[Certificate, ...]:
    """The strongest bound on the objective, then the strongest on the simulated time where that is what is sought."""
    query = BoundQuery(
        problem=context.problem,
        costs=context.costs,
        objective=context.options.objective,
        batches=tuple(context.batches()),
        replication=context.options.replication,
        replica_mode=context.options.replica_mode,
        schedules=context.schedules,
        iteration_upper_s=best.estimate.iteration_time_s,
        expired=Clock(max(BOUND_GRACE_S, context.clock.left_s())).expired,
    )
    everything = "all plans at the allowed batch sizes, on whole device groups"
    general = context.search_model in GENERAL_MODELS
    bounds = [(b.objective_s(query), b.name, everything) for b in BOUNDS if general]
    bounds += [(o.bound_s, name, o.scope) for name, o in outcomes.items()]
    found = [_certificate(context, "objective_s", best.candidate.objective_s, bounds)]
    if context.options.objective is Objective.ITERATION_TIME:
        simulated = [(b.iteration_s(query), b.name, everything) for b in BOUNDS]
        found.append(_certificate(context, "iteration_time_s", best.estimate.iteration_time_s, simulated))
    return tuple(found)


def _certificate(
    context: SearchContext, quantity: str, value: float, bounds: list[tuple[float | None, str, str]]
) -> Certificate:
    bound, method, scope = max(((b, m, s) for b, m, s in bounds if b is not None), key=lambda item: item[0])
    if bound > value * (1 + ROUNDING):
        raise InternalError(f"the bound {method!r} says {bound!r} s, but a plan takes {value!r} s")
    bound = min(bound, value)
    return Certificate(
        quantity=quantity,
        search_model=context.search_model.value if quantity == "objective_s" else "simulation",
        bound_s=bound,
        gap=value / bound - 1.0 if bound else 0.0,
        method=method,
        scope=scope,
    )


def _notes(context: SearchContext, finalists: list[_Finalist]) -> tuple[str, ...]:
    """What a reader should know about the winner."""
    best, notes = finalists[0], []
    idle = best.estimate.num_devices_idle
    if idle:
        notes.append(
            f"{idle} of {len(context.problem.cluster.devices)} devices stay idle: no plan found is faster with them"
        )
    if len({len(stage.replicas) for stage in best.candidate.plan.stages}) > 1:
        notes.append("replication differs between stages, which PyTorch cannot run: --replication equal rules it out")
    equal = next((f for f in finalists if f.found_by == "uniform"), None)
    if equal is not None and equal is not best and best.estimate.iteration_time_s:
        ratio = equal.estimate.iteration_time_s / best.estimate.iteration_time_s
        notes.append(f"the best equal split takes {ratio:.3f} times as long")
    return tuple(notes)


def _runner_up(best: _Finalist, other: _Finalist) -> RunnerUp:
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


def planner_version() -> str:
    """The installed version of PipePlan."""
    try:
        return version("pipeplan")
    except PackageNotFoundError:
        return "unknown"
