"""How many more devices suffice: the memory question on a much larger cluster of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.costs.model import CostModel
from planner.errors import LimitError, PlannerError
from planner.optimizers._chain_memory import fewest_groups
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers.base import SearchContext, divisors
from planner.options import Replication, SearchOptions
from planner.problem import Problem
from planner.variations import grown, unit, with_cluster
from planner.workload import ReplicaMode

LARGEST_GROWTH = 16
"""The larger cluster has this many times the devices, and one more for every layer."""

MOST_DEVICES = 4096
MOST_DEGREES = 64
"""Replication degrees that are asked about."""


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
        if found is not None:
            yield found, options


def _grown(context: SearchContext) -> Devices | None:
    """One number of devices of the last kind; None where no number helps, or the cluster has no link to copy."""
    problem, added = context.problem, len(unit(context.problem.cluster))
    have = len(problem.cluster.devices)
    units = max(1, min(MOST_DEVICES, (LARGEST_GROWTH - 1) * have + len(problem.index)) // added)
    largest = _with_units(problem, units)
    needed = _fewest_devices(replace(context, problem=largest, costs=CostModel(largest))) if largest else None
    if needed is None:
        return None
    more = max(1, -(-(needed - have) // added))
    there = _with_units(problem, more)
    words = f"{have + more * added} devices instead of {have}"
    if context.options.num_stages is None:
        words += ", with any number of stages"
    return None if there is None else Devices(words=words, problem=there)


def _with_units(problem: Problem, units: int) -> Problem | None:
    cluster = grown(problem.cluster, units)
    try:
        return None if cluster is None else with_cluster(problem, cluster)
    except PlannerError:
        return None


def _fewest_devices(context: SearchContext) -> int | None:
    tensor = context.problem.workload.tensor
    classes = device_classes(context.problem, tensor)
    most = min(MOST_DEGREES, max((len(groups) for groups in classes), default=0))
    counts = []
    for batch in context.batches():
        for degrees in _degree_sets(context, batch, most):
            found = _fewest_groups(context, batch, degrees)
            if found is not None:
                counts.append(found * tensor)
    return min(counts, default=None)


def _fewest_groups(context: SearchContext, batch: tuple[int, int], degrees: tuple[int, ...]) -> int | None:
    space = ChainSpace(context, context.schedules[0], batch, degrees)
    try:
        found = fewest_groups(space, context.options.num_stages)
    except LimitError:
        return None
    return None if found is None else found[0]


def _degree_sets(context: SearchContext, batch: tuple[int, int], most: int) -> list[tuple[int, ...]]:
    if context.options.replication is Replication.NONE:
        return [(1,)]
    total = batch[1] if context.options.replica_mode is ReplicaMode.DEALT else batch[0]
    degrees = [d for d in divisors(total) if d <= most]
    return [(d,) for d in degrees] if context.options.replication is Replication.EQUAL else [tuple(degrees)]
