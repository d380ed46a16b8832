"""`max_batch`: the largest microbatch for which some plan fits, then the fastest plan at that size.

The number of microbatches M is the workload's: given, or the global batch over the given microbatch size. Else it is
the number of stages that the longest pipeline can have: fewer leave stages of it idle, with more 1F1B holds no more.
The global batch of the answer is the largest size times M.

Memory grows with the size, but the degrees that divide a size do not, so fitting is not monotone in it. A relaxation is
monotone: every degree divides every size. Bisection finds the largest size at which it fits; no larger size has a plan.
From there sizes are tried downwards with the exact question.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner.errors import LimitError
from planner.goals.base import GOALS, SHORTEST_SEARCH_S, Answer, Planner, changed, fastest, labelled
from planner.optimizers._chain_memory import fewest_groups
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers._memory_question import contexts, fewest_devices
from planner.optimizers.base import Clock, SearchContext
from planner.options import Objective, Replication, SearchOptions
from planner.problem import Problem
from planner.profile import Profile
from planner.result import Attained
from planner.workload import ReplicaMode, Workload

LARGEST_BATCH = 2**30 // 2
"""Global batches above this are not looked at."""

MOST_DEGREES = 64
"""Replication degrees of the relaxation; with more groups nothing is proven."""

SEARCH_SHARE = 0.5
"""The share of the time that the fastest plan may take, once the size is known."""


@GOALS.register
class MaxBatch:
    """Proven on chains of layers whose memory grows with the microbatch, on devices of one kind."""

    name = Objective.MAX_BATCH.value

    def check(self, problem: Problem, options: SearchOptions) -> None:
        """Every problem has a largest batch, if only none."""

    def answer(self, problem: Problem, options: SearchOptions, plan: Planner) -> Answer:
        """The size, then the fastest plan at it; for no size at all the explanation of size 1."""
        clock = Clock(options.time_limit_s)
        count = num_microbatches(problem)
        trials = _Trials(problem, options, count, Clock((1 - SEARCH_SHARE) * clock.left_s()), plan)
        size, bound = trials.largest(_largest_relaxed(problem, options, count))
        there = at_size(problem, max(1, size), count)
        result = plan(there, fastest(options, clock))
        if not size:
            return Answer(problem=there, result=changed(labelled(result, Objective.MAX_BATCH), problem, there))
        attained = Attained(
            quantity="microbatch_size",
            value=size,
            bound=bound,
            proven=bound == size,
            method="fewest_groups" if bound * count < LARGEST_BATCH else "none",
            scope=f"{count} microbatches, one stage of consecutive layers per device group",
        )
        note = f"microbatch size {size} x {count} microbatches: the global batch of the answer is {size * count}"
        told = labelled(result, Objective.MAX_BATCH, notes=(note,), attained=attained)
        return Answer(problem=there, result=changed(told, problem, there))


def num_microbatches(problem: Problem) -> int:
    """What the workload says, else the stages of the longest pipeline."""
    work = problem.workload
    if work.num_microbatches is not None:
        return work.num_microbatches
    if work.microbatch_size is not None:
        return work.global_batch_size // work.microbatch_size
    groups = sum(len(each) for each in device_classes(problem, work.tensor))
    return max(1, min(len(problem.index), groups))


def at_size(problem: Problem, size: int, count: int) -> Problem:
    """The problem with `count` microbatches of `size`."""
    return problem.with_workload(_workload(problem.workload, size, count))


def _workload(work: Workload, size: int, count: int) -> Workload:
    return replace(work, global_batch_size=size * count, microbatch_size=size, num_microbatches=count)


class _Trials:
    """Sizes tried one by one, each by the memory question where that decides, else by planning."""

    def __init__(self, problem: Problem, options: SearchOptions, count: int, clock: Clock, plan: Planner) -> None:
        self.problem, self.options, self.count = problem, options, count
        self.clock, self.plan = clock, plan
        self.refuted: set[int] = set()

    def largest(self, bound: int | None) -> tuple[int, int]:
        """(the largest size that is known to fit or 0, the largest that is not refuted).

        Downwards from the bound of the relaxation; where there is none, or time runs out, by bisection.
        """
        top = LARGEST_BATCH // self.count if bound is None else bound
        at = top
        while bound is not None and at > 0 and not self.clock.expired():
            if self._fits(at):
                return at, self._bound(at, top)
            at -= 1
        size = self._by_bisection() if at else 0
        return size, self._bound(size, top)

    def _bound(self, size: int, top: int) -> int:
        """Every size above it is refuted, by the relaxation or by its own question."""
        while top > size and top in self.refuted:
            top -= 1
        return top

    def _by_bisection(self) -> int:
        """The largest size that a doubling and a bisection find."""
        low, high, end = 0, 1, LARGEST_BATCH // self.count + 1
        while high < end and self._fits(high):
            low, high = high, min(2 * high, end)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        return low

    def _fits(self, size: int) -> bool:
        there = at_size(self.problem, size, self.count)
        question = fewest_devices(there, self.options)
        if question.refuted:
            self.refuted.add(size)
        if question.plan is not None or question.refuted:
            return question.plan is not None
        limit_s = max(SHORTEST_SEARCH_S, self.clock.left_s() / 8)
        quick = replace(fastest(self.options, self.clock), num_finalists=1, time_limit_s=limit_s)
        return self.plan(there, quick).plan is not None


def _largest_relaxed(problem: Problem, options: SearchOptions, count: int) -> int | None:
    """The largest size at which the relaxation fits; None where it proves nothing or has no end."""
    if not problem.index.is_chain() or not _grows(problem):
        return None
    if not _relaxation_fits(problem, options, 1, count):
        return 0 if _is_question(problem, options) else None
    low, high = 1, 2
    while _relaxation_fits(problem, options, high, count):
        low, high = high, 2 * high
        if high * count > LARGEST_BATCH:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _relaxation_fits(problem, options, middle, count) else (low, middle)
    return low if _is_question(problem, options) else None


def _relaxation_fits(problem: Problem, options: SearchOptions, size: int, count: int) -> bool:
    there = at_size(problem, size, count)
    return any(_any_degree_fits(context, (size, count)) for context in contexts(there, options))


def _any_degree_fits(context: SearchContext, batch: tuple[int, int]) -> bool:
    """A question that the clock leaves open counts as a yes: the bound stays one."""
    space = ChainSpace(context, context.schedules[0], batch, tuple(range(1, _most_degrees(context) + 1)))
    try:
        return fewest_groups(space, context.options.num_stages) is not None
    except LimitError:
        return True


def _most_degrees(context: SearchContext) -> int:
    classes = device_classes(context.problem, context.problem.workload.tensor)
    most = max((len(groups) for groups in classes), default=0)
    return min(1, most) if context.options.replication is Replication.NONE else most


def _is_question(problem: Problem, options: SearchOptions) -> bool:
    """Whether the relaxation covers every plan: few degrees, and stages on equal devices."""
    used = {(d.type, problem.memory_limits[d.id]) for d in problem.cluster.devices if d.type in problem.profile_of}
    few = all(_most_degrees(context) <= MOST_DEGREES for context in contexts(problem, options))
    alone = options.replication is Replication.NONE or options.replica_mode is ReplicaMode.DEALT
    return few and (len(used) == 1 or alone)


def _grows(problem: Problem) -> bool:
    """Whether every layer's bytes grow with the microbatch in every profile, so that bisection is sound."""
    return all(
        all(x <= y for small, large in pairwise(sizes) for x, y in zip(small, large, strict=True))
        for profile in problem.profiles
        for sizes in _bytes_by_size(profile).values()
    )


def _bytes_by_size(profile: Profile) -> dict[tuple[str, int, int | None], list[tuple[int, ...]]]:
    """(layer, tensor degree, sequence length) -> bytes that depend on the microbatch, the smallest size first."""
    found: dict[tuple[str, int, int | None], list[tuple[int, ...]]] = {}
    for table in sorted(profile.tables, key=lambda t: t.microbatch_size):
        for name, cost in table.layers.items():
            selective, late = cost.selective_activation_bytes or 0, cost.weight_pass_bytes or 0
            sizes = (cost.activation_bytes, cost.workspace_bytes, selective, late)
            found.setdefault((name, table.tensor, table.sequence_length), []).append(sizes)
    return found
