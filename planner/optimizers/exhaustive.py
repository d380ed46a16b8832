"""`exhaustive`: the oracle. It prices every plan and keeps the best; simple, slow, and independent of the others."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import islice, product

from planner.costs.compute import CANNOT_RUN_S
from planner.costs.objective import objective_s
from planner.errors import InputError
from planner.optimizers._assignments import Assignment, assignments, device_groups
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext, mixes_devices
from planner.options import Level
from planner.plan import Plan, Stage
from planner.problem import Problem

MAX_PLANS = 100_000
"""More plans than this are refused: about 20 seconds of pricing."""

MAX_DEVICES = 64
MAX_IDEALS = 1_000
"""More devices, or down-closed sets of layers, than this are refused without counting any plan."""

Partition = tuple[int, ...]
"""The stages from the first on, each a bitset of layer positions."""

Rank = tuple[float, int, int, tuple[int, ...], int, int, int]


@OPTIMIZERS.register
class Exhaustive:
    """Exact by construction on any graph and any cluster, for as few plans as can be priced one by one."""

    name = "exhaustive"
    searches_levels = True
    plans_groups = True

    def supports(self, context: SearchContext) -> str:
        """Counts the plans first."""
        if not device_groups(context.problem):
            work = context.problem.workload
            return f"no class of equal devices has {work.tensor * work.context} of them (tensor x context degree)"
        devices = len(context.problem.cluster.devices)
        if devices > MAX_DEVICES:
            return f"it compares the routes of at most {MAX_DEVICES} devices (here {devices})"
        count = count_plans(context)
        return "" if count <= MAX_PLANS else f"more than {MAX_PLANS:,} plans"

    def search(self, context: SearchContext) -> Outcome:
        """The best `num_finalists` plans; ties: fewer devices, fewer stages, lexicographically smaller stage sizes."""
        ended = False

        def until_the_limit() -> Iterator[tuple[Rank, Candidate]]:
            nonlocal ended
            for ranked in _ranked(context):
                if context.clock.expired():
                    return
                yield ranked
            ended = True

        best = heapq.nsmallest(context.options.num_finalists, until_the_limit(), key=lambda item: item[0])
        candidates = tuple(candidate for _, candidate in best)
        return Outcome(
            candidates=candidates,
            exact=ended and not mixes_devices(context),
            scope=_scope(context.problem),
            bound_s=candidates[0].objective_s if ended and candidates and not mixes_devices(context) else None,
            finished=ended,
            notes=() if ended else ("exhaustive reached the time limit",),
        )


def count_plans(context: SearchContext) -> int:
    """How many plans `search` would price; any number above `MAX_PLANS` when there are more."""
    chains = _count_partitions(context.problem)
    if chains is None:
        return MAX_PLANS + 1
    total = 0
    for batch in context.batches():
        for stages in _stage_counts(context):
            if chains.get(stages):
                placed = sum(1 for _ in islice(assignments(context, stages, batch), MAX_PLANS + 1))
                total += chains[stages] * placed * len(context.schedules) * len(context.levels) ** stages
            if total > MAX_PLANS:
                return total
    return total


def ideals(problem: Problem, limit: float = math.inf) -> list[int] | None:
    """All down-closed sets of layers as bitsets, ascending by number; None when there are more than `limit`."""
    index = problem.index
    if len(index) >= limit:  # a chain has the fewest, one more than layers
        return None
    found = {0}
    frontier = [0]
    while frontier:
        ideal = frontier.pop()
        for layer in range(len(index)):
            larger = ideal | 1 << layer
            if larger not in found and not index.ancestors[layer] & ~ideal:
                found.add(larger)
                frontier.append(larger)
        if len(found) > limit:
            return None
    return sorted(found)


def partitions(problem: Problem, num_stages: int) -> Iterator[Partition]:
    """Every partition into `num_stages` non-empty stages such that tensors flow to the same or a later stage.

    These are the chains of ideals from the empty set to all layers: stage s is the difference of two neighbours.
    """
    known = ideals(problem)
    assert known is not None
    together = [sum(1 << i for i in problem.index.positions(group)) for group in problem.graph.colocated]

    def chains(ideal: int, left: int) -> Iterator[Partition]:
        for larger in known if left > 1 else known[-1:]:
            stage = larger & ~ideal
            if larger & ideal == ideal and stage and all(stage & t in (0, t) for t in together):
                if left == 1:
                    yield (stage,)
                else:
                    yield from ((stage, *rest) for rest in chains(larger, left - 1))

    return chains(0, num_stages)


def _stage_counts(context: SearchContext) -> range:
    most = min(len(context.problem.index), len(device_groups(context.problem)))
    wanted = context.options.num_stages
    if wanted is None:
        return range(1, most + 1)
    return range(wanted, wanted + 1) if wanted <= most else range(0)


def _count_partitions(problem: Problem) -> dict[int, int] | None:
    """Number of partitions per number of stages (colocation ignored); None with more than `MAX_IDEALS` ideals."""
    known = ideals(problem, MAX_IDEALS)
    if known is None:
        return None
    chains: dict[int, dict[int, int]] = {0: {0: 1}}
    for larger in known[1:]:
        by_length: dict[int, int] = {}
        for smaller in known:
            if smaller != larger and smaller & larger == smaller:
                for length, count in chains[smaller].items():
                    by_length[length + 1] = by_length.get(length + 1, 0) + count
        chains[larger] = by_length
    return chains[known[-1]]


def _ranked(context: SearchContext) -> Iterator[tuple[Rank, Candidate]]:
    """Every plan that can run, with what ranks it."""
    for b, batch in enumerate(context.batches()):
        for stages in _stage_counts(context):
            placements = list(assignments(context, stages, batch))
            for partition in partitions(context.problem, stages):
                sizes = tuple(stage.bit_count() for stage in partition)
                for a, assignment in enumerate(placements):
                    used = sum(len(group) for groups in assignment for group in groups)
                    for n, (schedule, levels) in enumerate(_settings(context, stages)):
                        plan = _plan(context, partition, assignment, batch, schedule, levels)
                        value = _value(context, plan)
                        if value is not None:
                            rank = (value, used, stages, sizes, b, a, n)
                            yield rank, Candidate(plan=plan, objective_s=value)


def _settings(context: SearchContext, stages: int) -> Iterator[tuple[str, tuple[Level, ...]]]:
    """Every schedule with every choice of a level per stage."""
    return product(context.schedules, product(context.levels, repeat=stages))


def _plan(
    context: SearchContext,
    partition: Partition,
    assignment: Assignment,
    batch: tuple[int, int],
    schedule: str,
    levels: tuple[Level, ...],
) -> Plan:
    layers = context.problem.index.layers
    return Plan(
        stages=tuple(
            Stage(
                layers=tuple(layer.id for i, layer in enumerate(layers) if stage >> i & 1),
                replicas=groups,
                tensor=context.problem.workload.tensor,
                context=context.problem.workload.context,
                expert=context.problem.workload.expert,
                recomputation=level.recomputation,
                zero=level.zero,
                reshard=level.reshard,
            )
            for stage, groups, level in zip(partition, assignment, levels, strict=True)
        ),
        schedule=schedule,
        microbatch_size=batch[0],
        num_microbatches=batch[1],
        replica_mode=context.options.replica_mode,
    )


def _value(context: SearchContext, plan: Plan) -> float | None:
    """The plan's objective; None when it cannot run: a missing route, an unsupported layer, too little memory."""
    try:
        priced = context.costs.price(plan)
    except InputError:
        return None
    for stage in priced.stages:
        if stage.seconds.forward_s >= CANNOT_RUN_S or stage.memory.total_bytes > stage.memory.limit_bytes:
            return None
    return objective_s(context.problem, priced, context.options.objective, context.search_model)


def _scope(problem: Problem) -> str:
    size = problem.workload.tensor * problem.workload.context
    groups = f"groups of {size} consecutive devices" if size > 1 else "single devices"
    return f"all ordered partitions into convex stages on {groups}, equal devices per stage"
