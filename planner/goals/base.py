"""The protocol of goals: objectives beyond the two that searches minimise themselves.

A goal asks for searches (it is given `plan`, so that it imports no orchestrator) and may change the problem: its
answer carries the problem that the plan belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from planner.errors import InputError
from planner.optimizers.base import Clock
from planner.options import SEARCHED_OBJECTIVES, Objective, SearchOptions
from planner.problem import Problem
from planner.registry import Registry
from planner.result import Attained, Changes, PlanResult

Planner = Callable[[Problem, SearchOptions], PlanResult]
"""`planner.service.plan`."""

SHORTEST_SEARCH_S = 0.2
"""No search of a goal gets less, even when its time is over."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A result and the problem that it answers, which a goal may have changed (`result.changes`)."""

    problem: Problem
    result: PlanResult


class Goal(Protocol):
    """One objective. `name` is its value in `planner.options.Objective`."""

    name: str

    def check(self, problem: Problem, options: SearchOptions) -> None:
        """InputError where the goal makes no sense for the problem or the options."""

    def answer(self, problem: Problem, options: SearchOptions, plan: Planner) -> Answer:
        """Reach the goal within `options.time_limit_s`."""


GOALS: Registry[Goal] = Registry("objective", "planner.goals")


def changed(result: PlanResult, before: Problem, after: Problem) -> PlanResult:
    """The result with what differs between the problem that was asked and the one that it answers."""
    workload = None if after.workload == before.workload else after.workload
    cluster = None if after.cluster == before.cluster else after.cluster
    if workload is None and cluster is None:
        return result
    return replace(result, changes=Changes(workload=workload, cluster=cluster))


def changed_problem(problem: Problem, result: PlanResult) -> Problem:
    """The problem that `result` answers, when `problem` was asked."""
    changes = result.changes
    if changes is None:
        return problem
    return Problem(
        graph=problem.graph,
        profiles=problem.profiles,
        cluster=changes.cluster or problem.cluster,
        workload=changes.workload or problem.workload,
    )


def labelled(
    result: PlanResult, objective: Objective, *, notes: tuple[str, ...] = (), attained: Attained | None = None
) -> PlanResult:
    """The result of the last search as the answer to a goal."""
    report = result.report
    told = replace(report, objective=objective.value, notes=(*notes, *report.notes), attained=attained)
    return replace(result, report=told)


def fastest(options: SearchOptions, clock: Clock, *, share: float = 1.0) -> SearchOptions:
    """The same search for the smallest iteration time, within `share` of the time left."""
    return replace(
        options,
        objective=Objective.ITERATION_TIME,
        max_iteration_time_s=None,
        time_limit_s=max(SHORTEST_SEARCH_S, share * clock.left_s()),
    )


def check_goal_options(problem: Problem, options: SearchOptions) -> None:
    """The goal's own check; InputError for an option of another one."""
    if options.max_iteration_time_s is not None and options.objective is not Objective.MIN_DEVICES:
        raise InputError(
            f"max_iteration_time_s is for the objective {Objective.MIN_DEVICES}, this one is {options.objective}: "
            "leave it out",
            pointer="/options/max_iteration_time_s",
        )
    if options.objective not in SEARCHED_OBJECTIVES:
        GOALS[options.objective].check(problem, options)
