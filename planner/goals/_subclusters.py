"""Which devices a plan on N of them may have: the first of every kind, in every mixture of kinds."""

from __future__ import annotations

from itertools import islice, product

from planner.errors import InputError
from planner.problem import Problem
from planner.variations import only, with_cluster

MOST_MIXTURES = 32
"""Mixtures of kinds that are looked at for one number of devices; more are not, and nothing is proven then."""


def kinds(problem: Problem) -> list[list[str]]:
    """Ids of the devices that have a profile, by type and memory, in listed order."""
    found: dict[tuple[str, int], list[str]] = {}
    for device in problem.cluster.devices:
        if device.type in problem.profile_of:
            found.setdefault((device.type, problem.memory_limits[device.id]), []).append(device.id)
    return list(found.values())


def mixtures(problem: Problem, number: int) -> list[tuple[int, ...]]:
    """How many of each kind: at most `MOST_MIXTURES` tuples that sum up to `number`."""
    ranges = [range(min(number, len(ids)) + 1) for ids in kinds(problem)]
    return list(islice((counts for counts in product(*ranges) if sum(counts) == number), MOST_MIXTURES))


def on_devices(problem: Problem, counts: tuple[int, ...]) -> Problem | None:
    """The problem on the first devices of each kind; None where it has no meaning there (a layer without a device)."""
    ids = {name for names, count in zip(kinds(problem), counts, strict=True) for name in names[:count]}
    if len(ids) == len(problem.cluster.devices):
        return problem
    try:
        return with_cluster(problem, only(problem.cluster, ids))
    except InputError:
        return None


def on_number(problem: Problem, number: int) -> list[Problem]:
    """The problem on `number` devices, once per mixture of kinds."""
    return [
        there for counts in mixtures(problem, number) for there in [on_devices(problem, counts)] if there is not None
    ]
