"""`pareto`: every plan that no other one beats in both iteration time and devices used (or peak memory).

Each member is the fastest plan of a search with a limit: on so many devices, or with so little memory per device. The
limits go down until nothing fits. The answer is the fastest member, the others are its runners-up, each with the
certificates of its own search: how far its time is from the best within its limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.codec import fingerprint
from planner.finalists import ROUNDING
from planner.goals._subclusters import on_number
from planner.goals.base import GOALS, Answer, Planner, fastest, labelled
from planner.optimizers._memory_question import fewest_devices
from planner.optimizers.base import Clock
from planner.options import Front, Objective, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.result import Certificate, PlanResult, RunnerUp
from planner.timeline import Estimate
from planner.variations import with_cluster, with_memory

EVERY_NUMBER = 16
"""Up to so many devices every number is tried; beyond, numbers with two leading binary digits (and all)."""

MOST_MEMBERS = 32
"""Members of a front over memory; then it ends, and says so."""

SEARCHES = 6
"""A search gets this part of the time left."""


@dataclass(frozen=True, kw_only=True)
class _Member:
    """A plan of the front with what it costs, and the search that found it."""

    plan: Plan
    estimate: Estimate
    result: PlanResult

    def cost(self, front: Front) -> tuple[float, int]:
        """(seconds, devices or bytes)."""
        return self.estimate.iteration_time_s, _amount(self.estimate, front)


@GOALS.register
class Pareto:
    """The front over devices, or over the peak memory of a device."""

    name = Objective.PARETO.value

    def check(self, problem: Problem, options: SearchOptions) -> None:
        """Every problem has a front, if only of one plan."""

    def answer(self, problem: Problem, options: SearchOptions, plan: Planner) -> Answer:
        """All members; where nothing fits, why."""
        clock = Clock(options.time_limit_s)
        whole = plan(problem, fastest(options, clock, share=1 / SEARCHES))
        first = _member(whole)
        if first is None:
            return Answer(problem=problem, result=labelled(whole, Objective.PARETO))
        more = _by_devices if options.front is Front.DEVICES else _by_memory
        members = [first, *more(problem, options, plan, first, clock)]
        front = undominated(members, options.front)
        return Answer(problem=problem, result=_result(problem, front, options.front, late=clock.expired()))


def undominated(members: list[_Member], front: Front) -> list[_Member]:
    """The members that no other one beats, the fastest first; times that differ by rounding are equal."""
    kept: list[_Member] = []
    for member in sorted(members, key=lambda m: m.cost(front)):
        seconds, amount = member.cost(front)
        if kept and amount >= kept[-1].cost(front)[1]:
            continue
        if kept and seconds <= kept[-1].cost(front)[0] * (1 + ROUNDING):
            kept.pop()
        kept.append(member)
    return kept


def _by_devices(
    problem: Problem, options: SearchOptions, plan: Planner, first: _Member, clock: Clock
) -> Iterator[_Member]:
    """The fastest plan on every smaller number of devices on which something may fit."""
    at_least = fewest_devices(problem, options).at_least or 1
    below = len(problem.cluster.devices)
    for number in sorted(_numbers(below), reverse=True):
        if number < at_least or clock.expired():
            return
        if number >= below:
            continue
        for there in on_number(problem, number):
            found = _member(plan(there, fastest(options, clock, share=1 / SEARCHES)), problem)
            if found is not None:
                below = min(below, found.estimate.num_devices_used)
                yield found


def _numbers(total: int) -> set[int]:
    if total <= EVERY_NUMBER:
        return set(range(1, total + 1))
    powers = [2**k for k in range(total.bit_length())]
    return {n for power in powers for n in (power, 3 * power // 2) if n <= total}


def _by_memory(
    problem: Problem, options: SearchOptions, plan: Planner, first: _Member, clock: Clock
) -> Iterator[_Member]:
    """The fastest plan with one byte less than the last member's peak, until nothing fits."""
    peak = first.estimate.peak_memory_bytes
    for _ in range(MOST_MEMBERS):
        if clock.expired() or peak <= 0:
            return
        limits = {name: min(limit, peak - 1) for name, limit in problem.memory_limits.items()}
        there = with_cluster(problem, with_memory(problem.cluster, limits))
        if fewest_devices(there, options).refuted:
            return
        found = _member(plan(there, fastest(options, clock, share=1 / SEARCHES)), problem)
        if found is None:
            return
        yield found
        peak = found.estimate.peak_memory_bytes


def _member(result: PlanResult, problem: Problem | None = None) -> _Member | None:
    """The plan of a search, as a plan for `problem`, whose limits are wider."""
    if result.plan is None or result.estimate is None:
        return None
    if problem is None:
        return _Member(plan=result.plan, estimate=result.estimate, result=result)
    idle = len(problem.cluster.devices) - result.estimate.num_devices_used
    return _Member(
        plan=replace(result.plan, problem_fingerprint=fingerprint(problem)),
        estimate=replace(result.estimate, num_devices_idle=idle),
        result=result,
    )


def _result(problem: Problem, front: list[_Member], kind: Front, *, late: bool) -> PlanResult:
    """The fastest member, with the others as runners-up."""
    best, others = front[0], front[1:]
    notes = [f"the front over iteration time and {_words(kind)} has {len(front)} plans; the others are runners-up"]
    if late or len(front) > MOST_MEMBERS:
        notes.append("the front is not complete: the limit ended the search")
    result = replace(best.result, plan=best.plan, estimate=best.estimate)
    told = labelled(result, Objective.PARETO, notes=tuple(notes))
    return replace(told, runners_up=tuple(_runner_up(best, other, kind) for other in others))


def _runner_up(best: _Member, other: _Member, kind: Front) -> RunnerUp:
    report = other.result.report
    seconds, amount = other.cost(kind)
    slower = seconds / best.estimate.iteration_time_s if best.estimate.iteration_time_s else 1.0
    return RunnerUp(
        plan=other.plan,
        objective_s=report.objective_s or 0.0,
        iteration_time_s=seconds,
        reason=f"on the front: {_amount_words(amount, kind)}, {slower:.3f} times the fastest plan's time",
        num_devices_used=other.estimate.num_devices_used,
        peak_memory_bytes=other.estimate.peak_memory_bytes,
        certificates=tuple(_limited(c, amount, kind) for c in report.certificates),
    )


def _limited(certificate: Certificate, amount: int, kind: Front) -> Certificate:
    """The certificate of a search with a limit holds for plans within it."""
    return replace(certificate, scope=f"{certificate.scope}, with at most {_amount_words(amount, kind)}")


def _amount(estimate: Estimate, front: Front) -> int:
    return estimate.num_devices_used if front is Front.DEVICES else estimate.peak_memory_bytes


def _words(kind: Front) -> str:
    return "devices used" if kind is Front.DEVICES else "peak memory per device"


def _amount_words(amount: int, kind: Front) -> str:
    return f"{amount} devices" if kind is Front.DEVICES else f"{amount / 2**30:.2f} GiB per device"
