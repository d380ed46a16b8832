"""How many more devices suffice: the memory question on a much larger cluster of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.optimizers._memory_question import fewest_devices
from planner.optimizers.base import SearchContext
from planner.options import SearchOptions
from planner.problem import Problem
from planner.variations import grown, unit, with_cluster

LARGEST_GROWTH = 16
"""The larger cluster has this many times the devices, and one more for every layer."""

MOST_DEVICES = 4096
SHARE, SHORTEST_S = 0.5, 0.5
"""The part of the time left, and the least, that the question may take."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The problem on a cluster that has grown, in words."""

    words: str
    problem: Problem


def enough_devices(context: SearchContext) -> Iterator[tuple[Devices, SearchOptions]]:
    """The fewest devices that suffice for the request; with as many stages as helps, where their number is pinned."""
    free = replace(context.options, num_stages=None, cuts=())
    for options in dict.fromkeys([context.options, free]):
        found = _grown(replace(context, options=options))
        freed = "" if options == context.options else ", with any number of stages"
        if found is not None:
            yield replace(found, words=found.words + freed), options


def _grown(context: SearchContext) -> Devices | None:
    """One number of devices of the last kind; None where no number helps, or the cluster has no link to copy."""
    problem, added = context.problem, len(unit(context.problem.cluster))
    have = len(problem.cluster.devices)
    units = max(1, min(MOST_DEVICES, (LARGEST_GROWTH - 1) * have + len(problem.index)) // added)
    largest = _with_units(problem, units)
    needed = None if largest is None else _fewest(context, largest)
    if needed is None:
        return None
    more = max(1, -(-(needed - have) // added))
    there = _with_units(problem, more)
    words = f"{have + more * added} devices instead of {have}"
    return None if there is None else Devices(words=words, problem=there)


def _with_units(problem: Problem, units: int) -> Problem | None:
    cluster = grown(problem.cluster, units)
    try:
        return None if cluster is None else with_cluster(problem, cluster)
    except PlannerError:
        return None


def _fewest(context: SearchContext, largest: Problem) -> int | None:
    """Devices that suffice there, counted by the memory question."""
    limit_s = max(SHORTEST_S, SHARE * context.clock.left_s())
    question = fewest_devices(largest, replace(context.options, time_limit_s=limit_s))
    return question.most if question.plan is not None else None
