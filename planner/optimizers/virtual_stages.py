"""`virtual_stages`: several stages per device group, for interleaved and V-shaped schedules.

A shape is a batch, one replication degree for all ranks, P ranks (as many as there are groups for), v stages on each.
Shapes are tried in the order of an estimate: with T the passes of the whole model through one microbatch and M
microbatches, a uniform interleaved pipeline takes

    (M + (P - 1) / v) T / P                                           (Narayanan et al. 2021, section 2.2)

For each shape the layers are cut into P v intervals such that the longest is as short as can be (bisection over the
length, greedy filling), then cuts move by single layers while that relieves the busiest rank. Then stages of ranks
without room recompute, one after the other, those first that save most bytes for a second; ZeRO is one for all stages.
It proves nothing: the schedules' orders decide, and these are simulated.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from planner.bounds.base import BoundQuery
from planner.costs.communication import Group
from planner.costs.holding import Holding
from planner.costs.intervals import Array
from planner.costs.objective import objective_s
from planner.joint import spreads_experts
from planner.optimizers._chain_settings import asked_of
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers._virtual_levels import Rooms, Shape, shard_of, uniform_pipeline_s
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext, divisors
from planner.options import Level, Objective, Replication
from planner.plan import Plan, Stage
from planner.schedules import SCHEDULES, PipelineShape, Placement, is_legal, shape_on
from planner.verify import priced_and_verified
from planner.workload import ReplicaMode

MAX_SHAPES = 32
MAX_PRICED = 6
"""Shapes that are cut, and those that are priced, the most promising first, per placement."""
MAX_LAYERS = 1500
"""As for `chain_dp`: tables of intervals."""
MOVES = 200
"""Cuts that are moved at most."""
RESERVES = (0.0, 0.01, 0.03, 0.1)
"""Shares of the memory that are left free where a plan does not fit after all."""


SCOPE = "equal degrees, all device groups, several stages on each"
TABLES_S = 1e-6
"""Seconds for each pair of layers until the first plan; without so much time what is known already has to do."""


@OPTIMIZERS.register
class VirtualStages:
    """Interleaved and V-shaped pipelines on equal devices with equal replication."""

    name = "virtual_stages"
    searches_levels = True
    plans_groups = True
    virtual = True

    def supports(self, context: SearchContext) -> str:
        """Synchronous training of one kind of device, with a schedule that has virtual stages."""
        options, problem = context.options, context.problem
        if not context.virtual_schedules:
            return "no schedule with virtual stages is allowed"
        if problem.training is None or options.objective is not Objective.ITERATION_TIME:
            return "virtual stages shorten the iteration of synchronous training only"
        if options.replica_mode is ReplicaMode.DEALT and options.replication is not Replication.NONE:
            return "virtual stages have no dealt replicas"
        if len(problem.index) > MAX_LAYERS:
            return f"its tables hold {MAX_LAYERS} layers"
        kinds = {(d.type, problem.memory_limits[d.id]) for d in problem.cluster.devices}
        return "" if len(kinds) == 1 else "it plans equal devices only"

    def search(self, context: SearchContext) -> Outcome:
        """The best shapes of every placement, each with the first schedule that it is legal for."""
        found: list[Candidate] = []
        if context.incumbents and context.clock.left_s() < TABLES_S * len(context.problem.index) ** 2:
            return Outcome(candidates=(), exact=False, scope=SCOPE, finished=False)
        best = min((c.objective_s for c in context.incumbents), default=math.inf)
        classes = device_classes(context.problem, context.problem.workload.tensor)
        for placement in (Placement.LOOP, Placement.V):
            names = [name for name in context.virtual_schedules if SCHEDULES[name].placement is placement]
            shapes = _shapes(context, placement, classes, best) if names and classes else iter(())
            trials = [trial for shape in islice(shapes, MAX_SHAPES) for trial in _trials(shape, names)]
            for trial in sorted(trials, key=lambda trial: trial.estimate_s)[:MAX_PRICED]:
                candidate = _candidate(context, trial)
                found += [candidate] if candidate else []
                if context.clock.expired():
                    break
        return Outcome(
            candidates=tuple(sorted(found, key=lambda c: c.objective_s)),
            exact=False,
            scope=SCOPE,
            finished=not context.clock.expired(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idea:
    """One way to use the groups, before anything but its estimate is known."""

    estimate_s: float
    placement: Placement
    batch: tuple[int, int]
    degree: int
    ranks: int
    stages: int


def _ideas(context: SearchContext, placement: Placement, groups: int) -> list[_Idea]:
    """All of them, the most promising first. O(batches x degrees x layers)."""
    found = list[_Idea]()
    query, options = asked_of(context), context.options
    for batch in context.batches():
        degrees = [1] if options.replication is Replication.NONE else divisors(batch[0])
        for degree in (d for d in degrees if spreads_experts(context.problem.workload, options.replica_mode, d)):
            found += _of_degree(context, query, placement, batch, degree, groups // degree)
    return sorted(found, key=lambda idea: (idea.estimate_s, idea.stages))


def _of_degree(
    context: SearchContext, query: BoundQuery, placement: Placement, batch: tuple[int, int], degree: int, ranks: int
) -> Iterator[_Idea]:
    """Every number of stages per rank at one batch and degree."""
    layers, count, wanted = len(context.problem.index), batch[1], context.options.num_stages
    if ranks < 2 or 2 * ranks > layers or (placement is Placement.LOOP and count % ranks):
        return
    whole = math.fsum(min(row) for row in zip(*query.passes(batch[0], degree), strict=True))
    most = 2 if placement is Placement.V else layers // ranks
    for per_rank in range(2, most + 1) if wanted else sorted({most, -(-most // 2), -(-most // 4), 2}):
        if wanted in (None, ranks * per_rank) and per_rank > 1:
            yield _Idea(
                estimate_s=uniform_pipeline_s(count, ranks, ranks * per_rank, whole),
                placement=placement,
                batch=batch,
                degree=degree,
                ranks=ranks,
                stages=ranks * per_rank,
            )


def _shapes(context: SearchContext, placement: Placement, classes: list[list[Group]], best: float) -> Iterator[Shape]:
    """The ideas better than `best` whose weights and states have room, with their prices."""
    spaces: dict[tuple[tuple[int, int], int], ChainSpace] = {}
    for idea in _ideas(context, placement, len(classes[0])):
        if idea.estimate_s >= best or context.clock.expired():
            return
        key = (idea.batch, idea.degree)
        if key not in spaces:
            spaces[key] = ChainSpace(context, context.schedules[0], idea.batch, (idea.degree,), classes=classes)
        space = spaces[key]
        if space.configs and _has_room(space, idea.ranks):
            yield Shape(placement=placement, space=space, config=space.configs[0], ranks=idea.ranks, stages=idea.stages)


def _has_room(space: ChainSpace, ranks: int) -> bool:
    """Whether the ranks together hold what the whole model always holds, at some level: necessary for any cuts."""
    config = space.configs[0]
    limit = space.limit_bytes(config)
    whole = min(float(space.excess_at(level, config, 0)[0, space.num_layers]) for level in space.levels) + limit
    return whole <= ranks * limit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A shape with its cuts, a schedule and levels of its stages that may fit; `estimate_s` at these."""

    shape: Shape
    cuts: list[int]
    schedule: str
    rooms: Rooms
    levels: tuple[Level, ...]
    estimate_s: float


def _trials(shape: Shape, names: list[str]) -> Iterator[_Trial]:
    """One per schedule under which some levels may fit."""
    cuts = _cuts(shape)
    for name in names if cuts else ():
        assert cuts is not None
        if not is_legal(SCHEDULES[name], _pipeline(shape)):
            continue
        rooms = Rooms(shape, cuts, Holding(SCHEDULES[name], _pipeline(shape)))
        choices = [levels for shard in rooms.shards() if (levels := rooms.levels(shard, shape.limit)) is not None]
        levels = min(choices, key=rooms.estimate_s, default=None)
        if levels is not None:
            estimate_s = rooms.estimate_s(levels)
            yield _Trial(shape=shape, cuts=cuts, schedule=name, rooms=rooms, levels=levels, estimate_s=estimate_s)


def _pipeline(shape: Shape) -> PipelineShape:
    """The shape as schedules see it."""
    return shape_on(shape.placement, shape.ranks, shape.stages, shape.space.num_microbatches)


def _candidate(context: SearchContext, trial: _Trial) -> Candidate | None:
    """The trial's plan at its levels, or at those for a little less memory: what stages share is only estimated."""
    for reserve in RESERVES:
        levels = trial.rooms.levels(shard_of(trial.levels[0]), trial.shape.limit * (1 - reserve))
        if levels is None:
            break
        plan = _plan(context, trial.shape, trial.cuts, levels, trial.schedule)
        priced, wrong = priced_and_verified(plan, context.problem, context.costs)
        if priced is not None and not wrong:
            value = objective_s(context.problem, priced, context.options.objective, context.search_model)
            return Candidate(plan=plan, objective_s=value)
    return None


def _plan(context: SearchContext, shape: Shape, cuts: list[int], levels: tuple[Level, ...], schedule: str) -> Plan:
    space, layers, replicas = shape.space, context.problem.index.layers, shape.config.replicas
    groups = space.classes[0]
    return Plan(
        stages=tuple(
            Stage(
                layers=tuple(layer.id for layer in layers[i:j]),
                replicas=tuple(groups[shape.rank(s) * replicas : (shape.rank(s) + 1) * replicas]),
                tensor=space.tensor,
                context=space.work.context,
                expert=space.work.expert,
                recomputation=level.recomputation,
                zero=level.zero,
                reshard=level.reshard,
            )
            for s, (level, (i, j)) in enumerate(zip(levels, pairwise(cuts), strict=True))
        ),
        schedule=schedule,
        microbatch_size=space.microbatch_size,
        num_microbatches=space.num_microbatches,
        replica_mode=context.options.replica_mode,
    )


def _cuts(shape: Shape) -> list[int] | None:
    """Positions at which the stages start, and the end; None where the layers cannot be cut so often."""
    passes = shape.space.passes(shape.space.levels[0], shape.config)
    places = [int(j) for j in np.flatnonzero(shape.space.may_cut)]
    if len(places) <= shape.stages:
        return None
    cuts = _filled(passes, places, _shortest(passes, places, shape.stages))
    return _relieved(shape, passes, set(places), _divided(passes, places, cuts, shape.stages))


def _shortest(passes: Array, places: list[int], stages: int) -> float:
    """The smallest length, up to rounding, at which greedy filling needs no more than `stages` intervals."""
    single = [float(passes[i, j]) for i, j in pairwise(places)]
    low, high = max(single), float(passes[places[0], places[-1]])
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_filled(passes, places, middle)) - 1 <= stages else (middle, high)
    return high


def _filled(passes: Array, places: list[int], length: float) -> list[int]:
    """Cuts of intervals that are as long as they may be (passes grow with the interval)."""
    cuts, at = [places[0]], 0
    while cuts[-1] != places[-1]:
        row = passes[cuts[-1]]
        end = bisect_right(places, length, lo=at + 1, key=lambda place, row=row: float(row[place]))  # type: ignore[misc]
        at = max(at + 1, end - 1)
        cuts.append(places[at])
    return cuts


def _divided(passes: Array, places: list[int], cuts: list[int], stages: int) -> list[int]:
    """With the longest intervals divided in the middle until there are `stages`."""
    within = {(i, j): [p for p in places if i < p < j] for i, j in pairwise(cuts)}
    while len(within) < stages:
        i, j = max((ends for ends in within if within[ends]), key=lambda ends: (float(passes[ends]), -ends[0]))
        inner = within.pop((i, j))
        middle = min(inner, key=lambda p: (max(float(passes[i, p]), float(passes[p, j])), p))
        within[i, middle] = [p for p in inner if p < middle]
        within[middle, j] = [p for p in inner if p > middle]
    return sorted({place for ends in within for place in ends})


def _relieved(shape: Shape, passes: Array, places: set[int], cuts: list[int]) -> list[int]:
    """Move cuts next to the busiest rank's stages while the sorted loads of the ranks get smaller."""
    loads = _loads(shape, passes, cuts)
    for _ in range(MOVES):
        best, busiest = sorted(loads, reverse=True), loads.index(max(loads))
        inner = {s + end for s in range(shape.stages) if shape.rank(s) == busiest for end in (0, 1)}
        moves = _moves(places, cuts, sorted(inner - {0, shape.stages}))
        trials = [(sorted(_loads(shape, passes, moved), reverse=True), moved) for moved in moves]
        least = min(trials, default=(best, cuts))
        if least[0] >= best:
            break
        cuts = least[1]
        loads = _loads(shape, passes, cuts)
    return cuts


def _loads(shape: Shape, passes: Array, cuts: list[int]) -> list[float]:
    """Seconds of both passes per rank."""
    loads = [0.0] * shape.ranks
    for s, (i, j) in enumerate(pairwise(cuts)):
        loads[shape.rank(s)] += float(passes[i, j])
    return loads


def _moves(places: set[int], cuts: list[int], numbers: list[int]) -> Iterator[list[int]]:
    """The numbered cuts one layer to the left or to the right."""
    for number in numbers:
        for place in (cuts[number] - 1, cuts[number] + 1):
            if place in places and cuts[number - 1] < place < cuts[number + 1]:
                yield [*cuts[:number], place, *cuts[number + 1 :]]
