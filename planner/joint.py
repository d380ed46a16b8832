"""The joint search's space: which degrees and levels a request allows, as workloads that are searched one by one.

A level (recomputation, ZeRO stage, resharding) is chosen per stage by the searches themselves. Tensor, context and
expert degree are one for all stages, so that each choice of the three is a workload of its own: a variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from planner.errors import InputError
from planner.options import Decision, Level, Replication, SearchOptions
from planner.problem import Problem
from planner.targets import target_of
from planner.workload import Inference, Recomputation, ReplicaMode, Training

SEARCHED_ZERO = (0, 1, 3)
"""Without 2: with several microbatches it would reduce every gradient as often, and no pipeline engine has it."""

LEAST_TOKENS = 1024
"""A larger context degree than leaves each device this many tokens of a sample is not searched (where the length is
known): ring attention then moves more keys and values than it computes with [C]."""

MOST_DEGREE = 64
"""The largest context and expert degree that is searched."""


def settled(problem: Problem, options: SearchOptions) -> SearchOptions:
    """The options with what follows from pinned cuts and the target. InputError for cuts that are none."""
    if options.cuts:
        options = replace(options, num_stages=_stages_of(problem, options), cuts=tuple(dict.fromkeys(options.cuts)))
    target = target_of(options)
    if target is not None and _WIDTH.index(target.replication) < _WIDTH.index(options.replication):
        options = replace(options, replication=target.replication)
    return options


_WIDTH = (Replication.NONE, Replication.EQUAL, Replication.ANY)
"""The narrowest first."""


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
    """The levels that a stage may have, the cheapest kind first. Inference has one.

    For a target that has the same level in all stages it is the workload's: each level is a variant then.
    """
    target = target_of(options)
    if target is not None and target.equal_levels:
        options = replace(options, searched=())
    return _searched_levels(workload, options)


def _searched_levels(workload: Training | Inference, options: SearchOptions) -> tuple[Level, ...]:
    if isinstance(workload, Inference):
        return (Level(Recomputation.NONE, 0),)
    kinds = tuple(Recomputation) if Decision.RECOMPUTATION in options.searched else (workload.recomputation,)
    stages = SEARCHED_ZERO if Decision.ZERO in options.searched else (workload.zero,)
    whole = (False, True) if Decision.RESHARD in options.searched else (workload.reshard,)
    shards = [(zero, reshard) for zero in stages for reshard in (whole if zero == 3 else (True,))]
    return tuple(Level(kind, *shard) for kind in kinds for shard in shards)


def variants(problem: Problem, options: SearchOptions) -> list[Problem]:
    """The problem at every choice of the degrees that are searched, smallest first; others are the workload's.

    Choices for which no replication degree is left are dropped, unless none remains.
    """
    choices = [each for one in _choices(problem, options) for each in _at_levels(one, options)] or [problem.workload]
    found = [problem if work == problem.workload else problem.with_workload(work) for work in choices]
    return [each for each in found if may_run(each, options, _most_samples(each.workload))] or found


def _choices(problem: Problem, options: SearchOptions) -> Iterator[Training | Inference]:
    """Workloads with every choice of tensor, context and expert degree."""
    for tensor in _searched(problem, options, Decision.TENSOR, tensor_degrees(problem)):
        sized = replace(problem.workload, tensor=tensor)
        for context in _searched(problem, options, Decision.CONTEXT, context_degrees(problem, tensor)):
            if tensor * context <= len(problem.cluster.devices):
                longer = replace(sized, context=context)
                for expert in _searched(problem, options, Decision.EXPERT, expert_degrees(problem, longer)):
                    yield replace(longer, expert=expert)


def _at_levels(workload: Training | Inference, options: SearchOptions) -> list[Training | Inference]:
    """The workload, or for a target that has one level in all stages, with every level that is searched."""
    target = target_of(options)
    if target is None or not target.equal_levels or isinstance(workload, Inference):
        return [workload]
    levels = [level for level in _searched_levels(workload, options) if target.allows(level)]
    return [
        replace(workload, recomputation=level.recomputation, zero=level.zero, reshard=level.reshard) for level in levels
    ]


def _searched(problem: Problem, options: SearchOptions, decision: Decision, degrees: list[int]) -> list[int]:
    """The degrees of a decision that is searched and that the target knows; else the workload's."""
    target = target_of(options)
    if decision not in options.searched or (target is not None and decision not in target.degrees):
        return [getattr(problem.workload, decision.value)]
    return degrees


def may_run(problem: Problem, options: SearchOptions, microbatch_size: int) -> bool:
    """Whether some replication degree lets the expert degree divide the groups that run a microbatch together."""
    work = problem.workload
    fewest = work.expert // gcd(work.expert, work.context)
    if fewest == 1 or options.replication is Replication.NONE or options.replica_mode is ReplicaMode.DEALT:
        return fewest == 1
    groups = sum(_groups_of_a_type(problem, work.tensor * work.context))
    return fewest <= groups and microbatch_size % fewest == 0


def spreads_experts(workload: Training | Inference, mode: ReplicaMode, replicas: int) -> bool:
    """Whether a stage may have this replication degree: the expert degree divides the tensor-parallel groups that run a
    microbatch together (`planner.costs.model.check_degrees`)."""
    sharers = 1 if mode is ReplicaMode.DEALT else replicas
    return sharers * workload.context % workload.expert == 0


def tensor_degrees(problem: Problem) -> list[int]:
    """Degrees with costs of their own in every profile that is used, for which some type has enough devices."""
    used = [problem.profile_of[kind] for kind in _used_types(problem)]
    known = [{table.tensor for table in profile.tables} for profile in used]
    degrees = set.intersection(*known) if known else set()
    most = max(_groups_of_a_type(problem, 1), default=0)
    return sorted(t for t in degrees if t <= most) or [problem.workload.tensor]


def context_degrees(problem: Problem, tensor: int) -> list[int]:
    """Powers of two for which some type has enough devices, up to where each has `LEAST_TOKENS` of a sample.

    1 alone where no layer says what keys and values it would exchange.
    """
    if not any(layer.context_bytes_per_sample for layer in problem.index.layers):
        return [1]
    most = max(_groups_of_a_type(problem, tensor), default=0)
    tokens = _sequence_length(problem)
    return _powers(most if tokens is None else min(most, tokens // LEAST_TOKENS))


def expert_degrees(problem: Problem, workload: Training | Inference) -> list[int]:
    """Powers of two that divide every layer's experts, up to the groups that may run one microbatch together.

    1 alone for a model without experts.
    """
    experts = [layer.expert_parameter_bytes for layer in problem.index.layers if layer.expert_parameter_bytes]
    if not experts:
        return [1]
    groups = sum(_groups_of_a_type(problem, workload.tensor * workload.context))
    degrees = _powers(workload.context * min(groups, _most_samples(workload)))
    return [degree for degree in degrees if all(size % degree == 0 for size in experts)]


def _most_samples(workload: Training | Inference) -> int:
    """The largest microbatch; the other sizes divide it."""
    return workload.microbatch_size or workload.global_batch_size // (workload.num_microbatches or 1)


def _powers(most: int) -> list[int]:
    return [2**k for k in range(max(1, min(most, MOST_DEGREE)).bit_length())]


def _sequence_length(problem: Problem) -> int | None:
    """Tokens of a sample: the workload's, else the one length that the profiles were made at."""
    if problem.workload.sequence_length is not None:
        return problem.workload.sequence_length
    lengths = {table.sequence_length for profile in problem.profiles for table in profile.tables}
    return lengths.pop() if len(lengths) == 1 else None


def _used_types(problem: Problem) -> set[str]:
    return {d.type for d in problem.cluster.devices if d.type in problem.profile_of}


def _groups_of_a_type(problem: Problem, size: int) -> list[int]:
    """Per used device type, how many groups of `size` devices it can form."""
    return [sum(d.type == kind for d in problem.cluster.devices) // size for kind in _used_types(problem)]
