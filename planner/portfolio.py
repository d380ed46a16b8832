"""The portfolio: which optimizers run, in which order, for how long, and for which variants of a joint search.

Every optimizer works on all variants (degrees) before the next one does, the variant with the best plan first,
and gets the best plan of all variants and the candidates of its own. A variant is left alone when an optimizer has
proven its best plan optimal, or when its bound is no better than a plan of another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from planner.bounds import BOUNDS, BoundQuery
from planner.errors import InputError
from planner.joint import variants
from planner.optimizers._chain_settings import asked_of
from planner.optimizers.base import OPTIMIZERS, Candidate, Clock, Outcome, SearchContext, refusal
from planner.options import GENERAL_MODELS, Objective, Replication
from planner.result import Contribution
from planner.simulation.effort import TASKS_PER_S, seconds_to_simulate
from planner.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer of the portfolio. `share` of the time left is the most that all its variants together take.

    `equal`: with equal replication only, a first look at many devices before all degrees are searched.
    """

    optimizer: str
    share: float = 1.0
    equal: bool = False


PORTFOLIO = (
    Step(optimizer="uniform", share=1 / 3),
    Step(optimizer="ideal_dp"),
    Step(optimizer="chain_dp", equal=True, share=2 / 3),
    Step(optimizer="virtual_stages", share=0.9),
    Step(optimizer="chain_dp", share=1 / 3),
    Step(optimizer="multilevel"),
    Step(optimizer="order_dp", share=1 / 3),
    Step(optimizer="milp"),
    Step(optimizer="hierarchical_dp"),
)
"""What `auto` runs, in order, until every variant is solved or closed."""

MANY_DEVICES = 8
"""With more devices equal replication is searched first."""

OTHER_PLANS = ("virtual_stages",)
"""What looks among plans that no proof of the others is about, and so runs in any case."""

WARM_STARTS = {"milp": ("uniform", "chain_dp", "multilevel")}
WARM_SHARE = 0.5
"""What runs before a named optimizer, to give it a plan to start from, each for this share of the time left at most."""

INSTEAD_OF = {"milp": "order_dp"}
"""What needs no run after the other: where order search applies, `planner.bounds.bottleneck` proves more."""

SEARCH_SHARE = 0.8
"""Of the time limit; the rest is for simulating the finalists and for bounds."""
SIMULATION_GRACE_S = 0.7
"""How much of a long simulation may lie beyond the limit. What is more of it is taken from the search."""

FALL_BACK = "uniform"
FALL_BACK_S = 0.5
"""What looks for any plan at all when the time is over, and for how long at each variant."""

PER_SCHEDULE = "chain_dp"
QUICK_SHARE = 0.05
"""What searches under each schedule, and which share of the time left it may have taken and may take once more."""

INTERRUPTED = "interrupted: the best plan until then"
"""The note of a search that somebody ended."""

EASY_FIRST = 1.5
"""A variant may take this many times its equal share of the time left: the most promising ones come first."""


@dataclass(kw_only=True)
class Searched:
    """One variant with what came of it. `floor_s`: its bound in the search model before any search."""

    context: SearchContext
    floor_s: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    contributions: list[Contribution] = field(default_factory=list)
    equal_done: bool = False

    @property
    def best_s(self) -> float:
        """The smallest objective of the variant's own plans; infinite where none was found.

        Outcomes also repeat the best plan of other variants, with which their searches began.
        """
        candidates = (c for outcome in self.outcomes.values() for c in outcome.candidates)
        return min((c.objective_s for c in candidates if self._is_own(c)), default=math.inf)

    def _is_own(self, candidate: Candidate) -> bool:
        work, first = self.context.problem.workload, candidate.plan.stages[0]
        return (first.tensor, first.context, first.expert) == (work.tensor, work.context, work.expert)

    @property
    def is_solved(self) -> bool:
        """Whether an optimizer proved that nothing better exists."""
        return any(outcome.exact for outcome in self.outcomes.values())


def search(context: SearchContext) -> list[Searched]:
    """All variants, with what the named optimizer or the portfolio made of them.

    An interrupt ends the search like the time limit where there is a plan; without one it goes on to the caller.
    """
    found = [Searched(context=each, floor_s=floor(each)) for each in _contexts(context)]
    try:
        _search(context, found)
    except KeyboardInterrupt:
        if all(each.best_s == math.inf for each in found):
            raise
        context.clock.stop()
        found[0].outcomes[INTERRUPTED] = Outcome(
            candidates=(), exact=False, scope="", finished=False, notes=(INTERRUPTED,)
        )
    return found


def _search(context: SearchContext, found: list[Searched]) -> None:
    """Every step on every variant, then what else is quick."""
    search_clock = Clock(SEARCH_SHARE * context.clock.left_s())
    for step in _steps(context):
        waiting = sorted((each for each in found if _is_open(each, step, found)), key=lambda s: (s.best_s, s.floor_s))
        ends = Clock(step.share * min(search_clock.left_s(), _until_simulation(context, found)))
        for number, each in enumerate(waiting):
            if _is_open(each, step, found):
                _run(each, step, Clock(_part(ends.left_s(), len(waiting) - number)), _best_of(found))
    if context.options.optimizer == "auto" and context.options.objective is Objective.ITERATION_TIME:
        for each in found:
            _under_other_schedules(each, search_clock)
    for each in found:
        _at_other_depths(each, search_clock)
    if not any(each.outcomes and (each.is_solved or each.best_s < math.inf) for each in found):
        _fall_back(found)
    named = context.options.optimizer
    if not any(each.outcomes if named == "auto" else named in each.outcomes for each in found):
        _refuse(found[0])


def _until_simulation(context: SearchContext, found: list[Searched]) -> float:
    """Seconds until the simulation of the best plan has to begin; infinite where there is none."""
    known = _best_of(found)
    takes = (seconds_to_simulate(context.problem, each.plan) for each in known)
    return min((max(0.0, context.clock.left_s(SIMULATION_GRACE_S) - seconds) for seconds in takes), default=math.inf)


def _under_other_schedules(each: Searched, clock: Clock) -> None:
    """Candidates under every schedule that is tried, where that is quick: what fits differs, and so may the best cuts.

    The closed form is the same for all of them, so that a proof for the frugal one holds for all.
    """
    spent = [c.runtime_s for c in each.contributions if c.optimizer == PER_SCHEDULE]
    for schedule in each.context.schedules[1:] if spent else ():
        if sum(spent) > QUICK_SHARE * clock.left_s():
            break
        options = replace(each.context.options, schedule=schedule)
        context = replace(each.context, options=options, clock=Clock(QUICK_SHARE * clock.left_s()))
        started = time.monotonic()
        outcome = OPTIMIZERS[PER_SCHEDULE].search(context)
        name = f"{PER_SCHEDULE} under {schedule}"
        each.outcomes[name] = replace(outcome, exact=False, bound_s=None, notes=())
        each.contributions.append(_contribution(context, name, outcome, time.monotonic() - started))


def _at_other_depths(each: Searched, clock: Clock) -> None:
    """With the number of stages given, where no plan of the recurrence over suffixes fits: until one does, then as many
    other depths as are quick.

    Under some schedules a stage holds more the more stages are before it, which such a recurrence does not know.
    """
    outcome = each.outcomes.get(PER_SCHEDULE)
    if outcome is None or not outcome.candidates or each.context.options.num_stages is not None:
        return
    if any(not verify(c.plan, each.context.problem, each.context.costs) for c in _all_candidates(each)):
        return
    most = min(len(each.context.problem.index), len(each.context.problem.cluster.devices))
    known, ends = len(outcome.candidates[0].plan.stages), clock
    for depth in sorted(range(1, most + 1), key=lambda depth: (abs(depth - known), depth)):
        if ends.expired():
            break
        options = replace(each.context.options, num_stages=depth)
        context = replace(each.context, options=options, clock=ends)
        started = time.monotonic()
        found = OPTIMIZERS[PER_SCHEDULE].search(context)
        if found.candidates:
            name = f"{PER_SCHEDULE} in {depth} stages"
            each.outcomes[name] = replace(found, exact=False, bound_s=None, notes=())
            each.contributions.append(_contribution(context, name, found, time.monotonic() - started))
            ends = ends if ends is not clock else Clock(QUICK_SHARE * clock.left_s())


def _all_candidates(each: Searched) -> Iterator[Candidate]:
    """The variant's candidates, the best of every outcome first."""
    yield from (c for outcome in each.outcomes.values() for c in outcome.candidates)


def _fall_back(found: list[Searched]) -> None:
    """An equal split, quickly, where the time was over before anything was found."""
    step = Step(optimizer=FALL_BACK)
    for each in found:
        if each.outcomes and not refusal(OPTIMIZERS[FALL_BACK], each.context):
            _run(each, step, Clock(FALL_BACK_S), ())


def _steps(context: SearchContext) -> tuple[Step, ...]:
    """The portfolio, or the named optimizer with what it starts from.

    Where a simulation may take what is left for it, the equal split goes first: it says how long it takes.
    """
    named = context.options.optimizer
    if named == "auto":
        return PORTFOLIO
    first = WARM_STARTS.get(named, (FALL_BACK,) if named != FALL_BACK and _simulates_long(context) else ())
    return (*(Step(optimizer=name, share=WARM_SHARE) for name in first), Step(optimizer=named))


def _simulates_long(context: SearchContext) -> bool:
    """Whether the largest plans, two passes and transfers a stage, take longer than what the search leaves."""
    problem = context.problem
    virtual = context.is_virtual or context.options.optimizer in OTHER_PLANS
    stages = len(problem.index) if virtual else min(len(problem.index), len(problem.cluster.devices))
    most = 4 * stages * max((count for _, count in context.batches()), default=0)
    left_s = (1 - SEARCH_SHARE) * context.clock.left_s() + SIMULATION_GRACE_S
    return most > left_s * TASKS_PER_S[problem.workload.communication]


def _is_open(each: Searched, step: Step, found: list[Searched]) -> bool:
    """Whether the optimizer has anything to do for the variant."""
    context = each.context
    if refusal(OPTIMIZERS[step.optimizer], context):
        return False
    if context.options.optimizer != "auto":
        return True
    known = min(other.best_s for other in found)
    closed = each.is_solved or each.floor_s >= known
    few = len(context.problem.cluster.devices) <= MANY_DEVICES
    if step.equal and (few or context.options.replication is not Replication.ANY):
        return False
    return not (closed and step.optimizer not in OTHER_PLANS) and INSTEAD_OF.get(step.optimizer) not in each.outcomes


def _part(left_s: float, waiting: int) -> float:
    """The time of the next of some variants."""
    return min(left_s, EASY_FIRST * left_s / waiting)


def _run(each: Searched, step: Step, clock: Clock, known: tuple[Candidate, ...]) -> None:
    """Run the optimizer on the variant, with all that is known."""
    own = tuple(candidate for outcome in each.outcomes.values() for candidate in outcome.candidates)
    context = replace(each.context, clock=clock, incumbents=(*known, *own))
    context = replace(context, equal_done=not step.equal and each.equal_done)
    if step.equal:
        context = replace(context, options=replace(context.options, replication=Replication.EQUAL))
    started = time.monotonic()
    outcome = OPTIMIZERS[step.optimizer].search(context)
    if step.equal:
        each.equal_done = outcome.finished
        outcome = replace(outcome, exact=False, bound_s=None)
    each.outcomes[step.optimizer] = outcome
    each.contributions.append(_contribution(context, step.optimizer, outcome, time.monotonic() - started))


def _refuse(each: Searched) -> None:
    """InputError where no optimizer searches the problem: why the named one, or the last one, does not."""
    named = each.context.options.optimizer
    if named != "auto":
        raise InputError(
            f"optimizer {named!r} cannot search this problem: {_whole_refusal(named, each.context)}; "
            f"use auto{_others(named, each.context)}",
            pointer="/options/optimizer",
        )
    reasons = [reason for step in PORTFOLIO if (reason := refusal(OPTIMIZERS[step.optimizer], each.context))]
    if each.context.search_model not in GENERAL_MODELS:
        raise InputError(
            f"no optimizer searches this problem in the search model {each.context.search_model}: {reasons[-1]}",
            pointer="/options/search_model",
        )


def _whole_refusal(name: str, context: SearchContext) -> str:
    """What every optimizer of its kind refuses, and what this one does: each may be the one that cannot be helped."""
    reasons = (refusal(OPTIMIZERS[name], context), OPTIMIZERS[name].supports(context))
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def _others(refused: str, context: SearchContext) -> str:
    """The optimizers that do search the problem, to be named instead."""
    names = [n for n in OPTIMIZERS.names() if n != refused and not refusal(OPTIMIZERS[n], context)]
    return f" or one of {', '.join(names)}" if names else ""


def _best_of(found: list[Searched]) -> tuple[Candidate, ...]:
    """The best candidate of all variants; nothing where there is none."""
    candidates = (c for each in found for outcome in each.outcomes.values() for c in outcome.candidates)
    best = min(candidates, key=lambda c: c.objective_s, default=None)
    return () if best is None else (best,)


def floor(context: SearchContext) -> float:
    """The largest quick bound on the variant's objective; 0 where no bound holds for the search model.

    Infinite where no batch can be run with the given expert degree.
    """
    if not context.batches():
        return math.inf
    if context.search_model not in GENERAL_MODELS:
        return 0.0
    query = query_of(context)
    values = [bound.objective_s(query) for bound in BOUNDS]
    return max((value for value in values if value is not None), default=0.0)


def query_of(context: SearchContext, **known: object) -> BoundQuery:
    """What is asked of the bounds: every plan that the request allows."""
    return replace(
        asked_of(context),
        schedules=(*context.schedules, *(context.virtual_schedules if _may_be_virtual(context) else ())),
        search_model=context.search_model,
        seed=context.options.seed,
        **known,  # type: ignore[arg-type]
    )


def _may_be_virtual(context: SearchContext) -> bool:
    """Whether plans with several stages per device group are among those that the request allows."""
    return all(not refusal(OPTIMIZERS[name], context) for name in OTHER_PLANS)


def _contexts(context: SearchContext) -> Iterator[SearchContext]:
    """One context per variant; they share the cost model, which prices whatever degrees a plan has."""
    for problem in variants(context.problem, context.options):
        yield replace(context, problem=problem)


def _contribution(context: SearchContext, name: str, outcome: Outcome, seconds: float) -> Contribution:
    best: Candidate | None = min(outcome.candidates, key=lambda c: c.objective_s, default=None)
    return Contribution(
        optimizer=name,
        tensor=context.problem.workload.tensor,
        context=context.problem.workload.context,
        expert=context.problem.workload.expert,
        objective_s=best.objective_s if best else None,
        bound_s=outcome.bound_s,
        exact=outcome.exact,
        runtime_s=seconds,
    )
