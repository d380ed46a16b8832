"""`min_devices`: the fewest devices on which some plan fits, then the fastest plan on them.

With `max_iteration_time_s` the plan must also be that fast in simulation. More devices never hurt, as they may stay
idle, so the number is bisected. Memory alone is decided by `optimizers._chain_memory` on chains; a time limit is proven
out of reach by the certificate on the iteration time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.checks import MAX_SECONDS, check_number
from planner.goals._subclusters import MOST_MIXTURES, mixtures, on_number
from planner.goals.base import GOALS, Answer, Planner, changed, fastest, labelled
from planner.optimizers._memory_question import fewest_devices
from planner.optimizers.base import Clock
from planner.options import Objective, SearchOptions
from planner.problem import Problem
from planner.result import Attained, Infeasibility, PlanResult, Status

SEARCHES = 8
"""A search gets this part of the time left, so that a bisection comes to its end."""


@GOALS.register
class MinDevices:
    """Proven on chains on devices of one kind; with a time limit as far as its certificates reach."""

    name = Objective.MIN_DEVICES.value

    def check(self, problem: Problem, options: SearchOptions) -> None:
        """A time limit is a positive time."""
        if options.max_iteration_time_s is not None:
            check_number(
                options.max_iteration_time_s,
                "max_iteration_time_s",
                "/options/max_iteration_time_s",
                low=1e-12,
                high=MAX_SECONDS,
            )

    def answer(self, problem: Problem, options: SearchOptions, plan: Planner) -> Answer:
        """Bisect the number, then the fastest plan on it; where all devices do not suffice, why."""
        return _Bisection(problem, options, plan).answer()


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """One number of devices: the fastest answer that meets the demands, else whether there is proven to be none."""

    answer: Answer | None
    refuted: bool
    shown: Answer


class _Bisection:
    def __init__(self, problem: Problem, options: SearchOptions, plan: Planner) -> None:
        self.problem, self.options, self.plan = problem, options, plan
        self.clock = Clock(options.time_limit_s)
        self.total = sum(device.type in problem.profile_of for device in problem.cluster.devices)
        self.tried: dict[int, _Tried] = {}

    def answer(self) -> Answer:
        """Between the number that memory needs and all devices."""
        question = fewest_devices(self.problem, self.options)
        low = question.at_least or self.total
        high = self._first_that_serves(low, question.most)
        if high is None:
            return self._none()
        refuted_below = low
        while refuted_below < high:
            middle = (refuted_below + high) // 2
            if self._try(middle).answer is not None:
                high = middle
            else:
                refuted_below = middle + 1
        return self._told(high)

    def _first_that_serves(self, low: int, most: int | None) -> int | None:
        """A number that suffices: the one that memory needs, that with a plan, or all."""
        for number in dict.fromkeys(n for n in (low, most, self.total) if n is not None):
            if self._try(number).answer is not None:
                return number
        return None

    def _try(self, number: int) -> _Tried:
        if number not in self.tried:
            self.tried[number] = self._search(number)
        return self.tried[number]

    def _search(self, number: int) -> _Tried:
        answers = list(self._answers(number))
        fitting = [a for a in answers if self._serves(a.result)]
        refuted = len(mixtures(self.problem, number)) < MOST_MIXTURES and all(self._refuted(a.result) for a in answers)
        best = min(fitting, key=_seconds, default=None)
        shown = best or min(answers, key=_seconds, default=Answer(problem=self.problem, result=self._whole()))
        return _Tried(answer=best, refuted=refuted and best is None, shown=shown)

    def _answers(self, number: int) -> Iterator[Answer]:
        """The fastest plans on `number` devices; what cannot fit is not searched."""
        for there in on_number(self.problem, number):
            if there.workload.tensor <= number and not fewest_devices(there, self.options).refuted:
                yield Answer(
                    problem=there, result=self.plan(there, fastest(self.options, self.clock, share=1 / SEARCHES))
                )

    def _serves(self, result: PlanResult) -> bool:
        limit = self.options.max_iteration_time_s
        if result.plan is None or result.estimate is None:
            return False
        return limit is None or result.estimate.iteration_time_s <= limit

    def _refuted(self, result: PlanResult) -> bool:
        """Whether no plan on these devices meets the demands: proven by the search's status or its certificate."""
        if result.report.status is Status.INFEASIBLE:
            return True
        limit = self.options.max_iteration_time_s
        bounds = [c.bound_s for c in result.report.certificates if c.quantity == "iteration_time_s"]
        return limit is not None and any(bound > limit for bound in bounds)

    def _whole(self) -> PlanResult:
        return self.plan(self.problem, fastest(self.options, self.clock))

    def _told(self, number: int) -> Answer:
        found = self._try(number)
        assert found.answer is not None
        bound = self._bound(number)
        used = found.answer.result.estimate.num_devices_used if found.answer.result.estimate else number
        attained = Attained(
            quantity="devices",
            value=number,
            bound=bound,
            proven=bound == number,
            method="fewest_groups" if self.options.max_iteration_time_s is None else "certificates",
            scope="one stage of consecutive layers per device group, on the first devices of each kind",
        )
        notes = [f"{number} of {len(self.problem.cluster.devices)} devices suffice"]
        if used < number:
            notes.append(f"the fastest plan on them uses {used}")
        told = labelled(found.answer.result, Objective.MIN_DEVICES, notes=tuple(notes), attained=attained)
        return Answer(problem=found.answer.problem, result=changed(told, self.problem, found.answer.problem))

    def _bound(self, number: int) -> int:
        """The fewest devices that are not refuted: fewer than a refuted number are refuted with it."""
        memory = fewest_devices(self.problem, self.options).at_least or 1
        refuted = [n for n, tried in self.tried.items() if n < number and tried.refuted]
        return min(number, max([memory, *(n + 1 for n in refuted)]))

    def _none(self) -> Answer:
        """Not even all devices suffice: the explanation of memory, or that of the time limit."""
        shown = self._try(self.total).shown
        result = shown.result
        if result.plan is not None and result.estimate is not None:
            result = _too_slow(result, self.options.max_iteration_time_s or 0.0, proven=self._try(self.total).refuted)
        return Answer(problem=self.problem, result=labelled(result, Objective.MIN_DEVICES))


def _too_slow(result: PlanResult, limit: float, *, proven: bool) -> PlanResult:
    assert result.estimate is not None
    reason = Infeasibility(
        constraint="iteration_time",
        shortfall_bytes=0,
        message=(
            f"no plan found is fast enough: the fastest takes {result.estimate.iteration_time_s:.6g} s an iteration on "
            f"all devices, the limit is {limit:.6g} s"
        ),
        remedy="a longer limit, more devices, or a smaller global batch",
    )
    status = Status.INFEASIBLE if proven else Status.LIMIT
    report = replace(
        result.report, status=status, infeasibility=reason, objective_s=None, bound_s=None, gap=None, certificates=()
    )
    return replace(result, plan=None, estimate=None, report=report, runners_up=())


def _seconds(answer: Answer) -> float:
    estimate = answer.result.estimate
    return float("inf") if estimate is None else estimate.iteration_time_s
