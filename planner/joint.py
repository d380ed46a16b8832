"""The joint search's space: which degrees and levels a request allows, as workloads that are searched one by one.

A level (recomputation, ZeRO stage) is chosen per stage by the searches themselves; the tensor degree is one for all
stages, so that each degree is a workload of its own.
"""

from __future__ import annotations

from dataclasses import replace

from planner.options import Decision, Level, SearchOptions
from planner.problem import Problem
from planner.workload import Inference, Recomputation, Training

SEARCHED_ZERO = (0, 1, 3)
"""Without 2: with several microbatches it would reduce every gradient as often, and no pipeline engine has it."""


def levels_of(workload: Training | Inference, options: SearchOptions) -> tuple[Level, ...]:
    """The levels that a stage may have, the cheapest kind first. Inference has one."""
    if isinstance(workload, Inference):
        return (Level(Recomputation.NONE, 0),)
    kinds = tuple(Recomputation) if Decision.RECOMPUTATION in options.searched else (workload.recomputation,)
    stages = SEARCHED_ZERO if Decision.ZERO in options.searched else (workload.zero,)
    return tuple(Level(kind, zero) for kind in kinds for zero in stages)


def variants(problem: Problem, options: SearchOptions) -> list[Problem]:
    """The problem at every tensor degree that is searched, smallest first: the workload's where it is given."""
    if Decision.TENSOR not in options.searched:
        return [problem]
    return [problem.with_workload(replace(problem.workload, tensor=degree)) for degree in tensor_degrees(problem)]


def tensor_degrees(problem: Problem) -> list[int]:
    """Degrees with costs of their own in every profile that is used, for which some type has enough devices."""
    used = [
        problem.profile_of[kind] for kind in {d.type for d in problem.cluster.devices if d.type in problem.profile_of}
    ]
    known = [{table.tensor for table in profile.tables} for profile in used]
    counts = [sum(d.type == profile.device_type for d in problem.cluster.devices) for profile in used]
    degrees = set.intersection(*known) if known else set()
    return sorted(t for t in degrees if t <= max(counts)) or [problem.workload.tensor]
