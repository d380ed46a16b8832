"""What helps where nothing fits: changes from the smaller to the larger, each verified by planning with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.explanations.growing import enough_devices
from planner.explanations.searching import replanned
from planner.optimizers._memory_question import fewest_devices
from planner.optimizers.base import Clock, SearchContext, divisors
from planner.options import Decision, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.result import Infeasibility, Remedy
from planner.simulation.estimate import estimate_plan
from planner.targets import target_of
from planner.timeline import Estimate
from planner.variations import with_cluster, with_memory
from planner.workload import Recomputation, Training, Workload

LEAST_BUDGET_S, BUDGET_S = 1.0, 10.0
"""What all remedies of one answer may take: at least, at most; between, the time that the search left."""

SHARE, SHORTEST_S = 1 / 3, 0.1
"""A single remedy gets this part of the time left, at least so many seconds."""

NODE = 8
"""Tensor degrees above this leave the fast links of a usual node."""

MOST_SIZES = 6
"""Smaller microbatches, or numbers of them, that are tried."""


@dataclass(frozen=True, kw_only=True)
class _Change:
    """A changed request in words; `kind` as in `Remedy`."""

    kind: str
    words: str
    problem: Problem
    options: SearchOptions


def remedied(reason: Infeasibility, context: SearchContext) -> Infeasibility:
    """The reason with every remedy that was found; `remedy` names the first."""
    if reason.constraint != "memory":
        return reason
    clock = Clock(min(BUDGET_S, max(LEAST_BUDGET_S, context.clock.left_s())))
    found = tuple(_remedies(context, reason, clock))
    if not found:
        return reason
    return replace(reason, remedies=found, remedy=f"{found[0].change} (checked: a plan then fits)")


def _remedies(context: SearchContext, reason: Infeasibility, clock: Clock) -> Iterator[Remedy]:
    """The first that helps of each kind."""
    helped: set[str] = set()
    for change in _changes(context, reason):
        if clock.expired():
            return
        if change.kind in helped or (change.kind == "combined" and helped):
            continue
        found = _planned(change, clock)
        if found is not None:
            helped.add(change.kind)
            yield _remedy(change, *found)


def _planned(change: _Change, clock: Clock) -> tuple[Plan, Estimate] | None:
    """The best plan of a short search; where that runs out of time, the one that the memory question brings."""
    limit_s = max(SHORTEST_S, SHARE * clock.left_s())
    try:
        question = fewest_devices(change.problem, replace(change.options, time_limit_s=limit_s))
    except PlannerError:
        return None
    if question.refuted:
        return None
    found = replanned(change.problem, change.options, limit_s)
    if found is not None:
        return found.candidate.plan, found.estimate
    target = target_of(change.options)
    if question.plan is None or (target is not None and target.misfit(question.plan, change.problem)):
        return None
    return question.plan, estimate_plan(change.problem, question.plan)


def _remedy(change: _Change, plan: Plan, estimate: Estimate) -> Remedy:
    return Remedy(
        kind=change.kind,
        change=change.words,
        plan=plan,
        iteration_time_s=estimate.iteration_time_s,
        peak_memory_bytes=estimate.peak_memory_bytes,
        num_devices_used=estimate.num_devices_used,
    )


def _changes(context: SearchContext, reason: Infeasibility) -> Iterator[_Change]:
    """What is given and could be chosen otherwise; what is searched was tried."""
    work = context.problem.workload
    for kind, words, changed in (*_levels(context), *_batches(work)):
        problem = _with_workload(context.problem, changed)
        if problem is not None:
            yield _Change(kind=kind, words=words, problem=problem, options=context.options)
    for devices, options in enough_devices(context):
        yield _Change(kind="devices", words=devices.words, problem=devices.problem, options=options)
    yield _more_memory(context, reason)


def _with_workload(problem: Problem, work: Workload) -> Problem | None:
    try:
        return problem.with_workload(work)
    except PlannerError:
        return None


def _levels(context: SearchContext) -> Iterator[tuple[str, str, Workload]]:
    """Sharding, recomputation and the tensor degree of a training workload."""
    work = context.problem.workload
    if not isinstance(work, Training):
        return
    given = {decision for decision in Decision if decision not in context.options.searched}
    shard = Decision.ZERO in given and work.zero < 1
    again = Decision.RECOMPUTATION in given and work.recomputation is not Recomputation.FULL
    if shard:
        yield "zero", "ZeRO stage 1 (--zero 1)", replace(work, zero=1)
    if again and work.recomputation is Recomputation.NONE:
        selective = replace(work, recomputation=Recomputation.SELECTIVE)
        yield "recomputation", "selective recomputation (--recompute selective)", selective
    if again:
        full = replace(work, recomputation=Recomputation.FULL)
        yield "recomputation", "full recomputation (--recompute full)", full
    degrees = _larger_degrees(context) if Decision.TENSOR in given else []
    for degree in degrees:
        yield "tensor", f"tensor degree {degree} (--tensor {degree})", replace(work, tensor=degree)
    if shard and again:
        both = replace(work, recomputation=Recomputation.FULL, zero=1)
        yield "combined", "full recomputation and ZeRO stage 1 (--recompute full --zero 1)", both
        for degree in degrees[-1:]:
            words = f"tensor degree {degree} with both (--tensor {degree} --recompute full --zero 1)"
            yield "combined", words, replace(both, tensor=degree)


def _larger_degrees(context: SearchContext) -> list[int]:
    """Doubled up to the devices of a usual node."""
    work = context.problem.workload
    most = min(NODE, len(context.problem.cluster.devices))
    return [d for d in (2 * work.tensor, 4 * work.tensor, 8 * work.tensor) if d <= most]


def _batches(work: Workload) -> Iterator[tuple[str, str, Workload]]:
    """Smaller microbatches at the same global batch; fewer microbatches of the same size."""
    size, count, total = work.microbatch_size, work.num_microbatches, work.global_batch_size
    if size is None and count is None:
        return
    size = size or total // (count or 1)
    count = total // size
    for smaller in [d for d in reversed(divisors(total)) if d < size][:MOST_SIZES]:
        words = f"microbatch size {smaller} instead of {size} ({total // smaller} microbatches)"
        yield "microbatch_size", words, replace(work, microbatch_size=smaller, num_microbatches=total // smaller)
    for fewer in _fewer(count):
        words = f"{fewer} microbatches instead of {count} (global batch {fewer * size})"
        changed = replace(work, global_batch_size=fewer * size, microbatch_size=size, num_microbatches=fewer)
        yield "num_microbatches", words, changed


def _fewer(count: int) -> list[int]:
    """All smaller numbers where they are few, else the largest powers of two, downwards."""
    if count <= 2 * NODE:
        return list(range(count - 1, 0, -1))
    return [2**k for k in range((count - 1).bit_length() - 1, -1, -1)]


def _more_memory(context: SearchContext, reason: Infeasibility) -> _Change:
    """The shortfall on top, on every device: the least that any split needs."""
    problem = context.problem
    limits = {name: limit + reason.shortfall_bytes for name, limit in problem.memory_limits.items()}
    words = (
        f"{max(limits.values()) / 2**30:.2f} GiB per device instead of "
        f"{max(problem.memory_limits.values()) / 2**30:.2f} GiB"
    )
    larger = with_cluster(problem, with_memory(problem.cluster, limits))
    return _Change(kind="memory", words=words, problem=larger, options=context.options)
