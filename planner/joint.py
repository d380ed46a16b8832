"""The joint search's space: which degrees and levels a request allows, as workloads that are searched one by one.

A level (recomputation, ZeRO stage) is chosen per stage by the searches themselves; the tensor degree is one for all
stages, so that each degree is a workload of its own.
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import InputError
from planner.options import Decision, Level, Replication, SearchOptions
from planner.problem import Problem
from planner.targets import target_of
from planner.workload import Inference, Recomputation, Training

SEARCHED_ZERO = (0, 1, 3)
"""Without 2: with several microbatches it would reduce every gradient as often, and no pipeline engine has it."""


def settled(problem: Problem, options: SearchOptions) -> SearchOptions:
    """The options with what follows from pinned cuts and the target. InputError for cuts that are none."""
    if options.cuts:
        options = replace(options, num_stages=_stages_of(problem, options))
    target = target_of(options)
    if target is not None and target.equal_replication and options.replication is Replication.ANY:
        options = replace(options, replication=Replication.EQUAL)
    return options


def _stages_of(problem: Problem, options: SearchOptions) -> int:
    """The number of stages that the pinned cuts make."""
    for number, name in enumerate(options.cuts):
        at = f"/options/cuts/{number}"
        if name not in problem.index.position:
            raise InputError(f"the cut before {name!r} names no layer: use a layer of the graph", pointer=at)
        if not problem.index.position[name]:
            raise InputError(f"the cut before {name!r} leaves the first stage empty: it is the first layer", pointer=at)
    stages = len(set(options.cuts)) + 1
    if options.num_stages not in (None, stages):
        raise InputError(
            f"the pinned cuts make {stages} stages, but num_stages is {options.num_stages}: leave one out",
            pointer="/options/num_stages",
        )
    return stages


def levels_of(workload: Training | Inference, options: SearchOptions) -> tuple[Level, ...]:
    """The levels that a stage may have, the cheapest kind first. Inference has one."""
    if isinstance(workload, Inference):
        return (Level(Recomputation.NONE, 0),)
    kinds = tuple(Recomputation) if Decision.RECOMPUTATION in options.searched else (workload.recomputation,)
    stages = SEARCHED_ZERO if Decision.ZERO in options.searched else (workload.zero,)
    return tuple(Level(kind, zero) for kind in kinds for zero in stages)


def variants(problem: Problem, options: SearchOptions) -> list[Problem]:
    """The problem at every tensor degree that is searched, smallest first: the workload's where it is given."""
    target = target_of(options)
    if Decision.TENSOR not in options.searched or (target is not None and not target.tensor):
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
