"""The search space of `chain_dp` for one microbatch size: stages are intervals, devices are taken in listed order.

A *class* is a set of interchangeable devices (same type and memory limit), cut into groups of `tensor * context`
consecutive devices. A *config* is a class and a replication degree. Stages are placed from the last to the first; each
takes the last free groups of its class, so that the number of groups used per class (`Counts`) tells exactly which
devices a stage has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cluster import DeviceKind, Route
from planner.costs.communication import (
    Group,
    any_to_any_route,
    expert_routes,
    pipe_route,
    replica_ring_route,
    ring_route,
    tensor_groups,
)
from planner.costs.compute import CANNOT_RUN_S
from planner.costs.intervals import Array, cut_bytes
from planner.costs.memory import kept_bytes_per_microbatch, late_bytes_per_microbatch, total_bytes
from planner.costs.parts import StageParts
from planner.costs.stage import StageSetting, stage_memory, stage_seconds, tied_all_reduce_s
from planner.errors import InputError
from planner.joint import spreads_experts
from planner.optimizers.base import SearchContext
from planner.options import Level, SearchModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.schedules import SCHEDULES, PipelineShape, Placement
from planner.workload import ReplicaMode

MAX_CELLS = 2e7
"""Intervals of all depths that are remembered: 0.2 GB for each figure."""

Counts = tuple[int, ...]
"""Groups used so far, per class."""


@dataclass(frozen=True, slots=True)
class Config:
    """A device class (by number) and a replication degree."""

    device_class: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageArrays:
    """Per interval [i, j]: seconds of one microbatch, its share of the period, tail seconds, bytes over the limit.

    `level` is the number of the level (of `ChainSpace.levels`) that these are prices of; None where there is one only.
    """

    pass_s: Array
    load_s: Array
    tail_s: Array
    excess_bytes: Array
    level: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryArrays:
    """Per boundary j: transfer seconds, how long the link is busy, and what each end pays in `blocking`."""

    moved_s: Array
    link_s: Array
    left_pays_s: Array
    right_pays_s: Array


@dataclass(frozen=True, slots=True)
class GroupRoutes:
    """The routes of a stage's collectives, as in `StageSetting`; None for one member."""

    group: Route | None = None
    replica: Route | None = None
    context: Route | None = None
    expert: Route | None = None
    expert_replica: Route | None = None


def device_classes(problem: Problem, tensor: int, *, by_memory: bool = True) -> list[list[Group]]:
    """Groups of every class that has a profile, in listed order; devices that fill no group are left out.

    A group has `tensor` devices for each part of the context. A class is a device type, `by_memory` a type and a memory
    limit.
    """
    classes: dict[tuple[str, int], list[str]] = {}
    for device in problem.cluster.devices:
        if device.type in problem.profile_of:
            limit = problem.memory_limits[device.id] if by_memory else 0
            classes.setdefault((device.type, limit), []).append(device.id)
    size = tensor * problem.workload.context
    cut = [[tuple(ids[k : k + size]) for k in range(0, len(ids) - size + 1, size)] for ids in classes.values()]
    return [groups for groups in cut if groups]


class ChainSpace:
    """Prices of all stages and boundaries at one microbatch size, schedule and set of configs."""

    def __init__(
        self,
        context: SearchContext,
        schedule: str,
        batch: tuple[int, int],
        degrees: tuple[int, ...],
        *,
        by_memory: bool = True,
        classes: list[list[Group]] | None = None,
    ) -> None:
        self.context, self.problem, self.costs = context, context.problem, context.costs
        self.schedule, (self.microbatch_size, self.num_microbatches) = schedule, batch
        self.model = context.search_model
        self.work = self.problem.workload
        self.tensor = self.work.tensor
        self.levels = context.levels
        self.trades_tails = False
        self.dealt = context.options.replica_mode is ReplicaMode.DEALT
        self.classes = classes or device_classes(self.problem, self.tensor, by_memory=by_memory)
        mode = context.options.replica_mode
        legal = [degree for degree in degrees if spreads_experts(self.work, mode, degree)]
        fitting = [Config(c, r) for c, groups in enumerate(self.classes) for r in legal if r <= len(groups)]
        self.configs = fitting if self.levels else []
        self.num_layers = len(self.problem.index)
        self.may_cut = _boundaries(self.problem) & np.array(context.may_cut)
        self._cut = cut_bytes(self.problem.index)
        self._parts: dict[tuple[str, int], StageParts] = {}
        self._seconds: dict[object, tuple[Array, Array]] = {}
        self._stages: dict[object, StageArrays] = {}
        self._needs: dict[tuple[Level, Config], tuple[Array, Array]] = {}
        self._late_bytes: dict[tuple[Level, Config], Array] = {}
        self._limits: dict[int, int] = {}
        self._boundaries: dict[object, BoundaryArrays | None] = {}
        self._routes: dict[object, Route | None] = {}
        self._rings: dict[tuple[Group, ...], GroupRoutes | None] = {}

    @property
    def _none(self) -> Counts:
        return (0,) * len(self.classes)

    @property
    def capacity(self) -> Counts:
        """Groups per class."""
        return tuple(len(groups) for groups in self.classes)

    def device_type(self, config: Config) -> str:
        """The device type of the config's class."""
        return self.problem.devices[self.classes[config.device_class][0][0]].type

    def groups(self, counts: Counts, config: Config) -> tuple[Group, ...]:
        """The devices of a stage placed when `counts` groups are already taken."""
        groups, used = self.classes[config.device_class], counts[config.device_class]
        return tuple(groups[len(groups) - used - config.replicas : len(groups) - used])

    def add(self, counts: Counts, config: Config) -> Counts | None:
        """The counts with one more stage; None when its class has too few groups left."""
        c = config.device_class
        if counts[c] + config.replicas > len(self.classes[c]):
            return None
        return (*counts[:c], counts[c] + config.replicas, *counts[c + 1 :])

    def stage(self, counts: Counts, config: Config, stages_from_here: int) -> StageArrays | None:
        """Arrays of a stage of `config`, placed before `counts` groups, `stages_from_here` counting itself.

        None when a link between its devices is missing.
        """
        groups = self.groups(counts, config)
        held, late = self._in_flight(counts, config, stages_from_here), self.late(stages_from_here)
        routes = self._group_routes(groups)
        if routes is None:
            return None
        key = (config, held, late, routes)
        if key not in self._stages:
            if len(self._stages) * self.num_layers**2 > MAX_CELLS:
                self._stages.clear()
            self._stages[key] = self._stage_arrays(config, held, late, routes)
        return self._stages[key]

    def boundary(self, counts: Counts, left: Config, right: Config) -> BoundaryArrays | None:
        """Arrays of the boundary between a stage of `left` and the stage of `right` that `counts` ends with.

        None when the two have no route.
        """
        before = self._without(counts, right)
        key: object = (self.groups(counts, left), self.groups(before, right))
        if key not in self._routes:
            self._routes[key] = self._pipe_route(self.groups(counts, left), self.groups(before, right))
        route = self._routes[key]
        if route is None:
            return None
        name = (left, right, route.bandwidth_bytes_per_s, route.latency_s)
        if name not in self._boundaries:
            self._boundaries[name] = self._boundary_arrays(left, right, route)
        return self._boundaries[name]

    def plan(self, stages: list[tuple[int, int, Config, Counts]], *, idle_last: bool) -> Plan:
        """The plan of a solution: (first layer, end, config, counts before placing) from the first stage on.

        `idle_last` moves the stages to the first groups of their class: for networks where placement is no matter.
        """
        layers = self.problem.index.layers
        _, _, first, counts_before = stages[0]
        used = self.add(counts_before, first)
        assert used is not None
        idle = tuple(all_ - u for all_, u in zip(self.capacity, used, strict=True)) if idle_last else self._none
        levels = [self._level(counts, config, len(stages) - s, i, j) for s, (i, j, config, counts) in enumerate(stages)]
        return Plan(
            stages=tuple(
                Stage(
                    layers=tuple(layer.id for layer in layers[i:j]),
                    replicas=self.groups(_sum(counts, idle), config),
                    tensor=self.tensor,
                    context=self.work.context,
                    expert=self.work.expert,
                    recomputation=level.recomputation,
                    zero=level.zero,
                    reshard=level.reshard,
                )
                for level, (i, j, config, counts) in zip(levels, stages, strict=True)
            ),
            schedule=self.schedule,
            microbatch_size=self.microbatch_size,
            num_microbatches=self.num_microbatches,
            replica_mode=self.context.options.replica_mode,
        )

    def _level(self, counts: Counts, config: Config, stages_from_here: int, i: int, j: int) -> Level:
        """The level that a stage's prices are those of."""
        arrays = self.stage(counts, config, stages_from_here) if len(self.levels) > 1 else None
        return self.levels[0 if arrays is None or arrays.level is None else int(arrays.level[i, j])]

    def _without(self, counts: Counts, config: Config) -> Counts:
        c = config.device_class
        return (*counts[:c], counts[c] - config.replicas, *counts[c + 1 :])

    def _in_flight(self, counts: Counts, config: Config, stages_from_here: int) -> int:
        """Microbatches held by the first stage of the rest of the pipeline.

        Under 1F1B and GPipe it depends only on the number of stages from here on and on the sum of their dealt
        replicas. Under ZB-H1 and ZB-H2 it grows with the stages before: they are counted where the number of all stages
        is given, and left out where it is free, which is too little and so loses no plan.
        """
        before = max(0, (self.context.options.num_stages or 0) - stages_from_here)
        dealt = [1] * stages_from_here
        if self.dealt:
            dealt[0] = config.replicas
            if stages_from_here > 1:
                dealt[1] = sum(counts) - (stages_from_here - 2)
        shape = PipelineShape(
            num_stages=before + stages_from_here,
            num_microbatches=self.num_microbatches,
            dealt=(*[1] * before, *dealt),
            forward_only=self.problem.training is None,
        )
        return SCHEDULES[self.schedule].in_flight(shape, before)

    def _group_routes(self, groups: tuple[Group, ...]) -> GroupRoutes | None:
        """Routes inside and among the tensor-parallel groups of a stage; None when a link is missing."""
        if groups not in self._rings:
            try:
                self._rings[groups] = self._routes_of(groups)
            except InputError:
                self._rings[groups] = None
        return self._rings[groups]

    def _routes_of(self, replicas: tuple[Group, ...]) -> GroupRoutes:
        groups = replicas if self.work.context == 1 else self._parts_of(replicas)
        problem, (inside, among) = self.problem, expert_routes(self.problem, groups, self.work.expert)
        return GroupRoutes(
            group=_plain(ring_route(problem, groups[0])),
            replica=_plain(replica_ring_route(problem, groups)),
            context=_plain(replica_ring_route(problem, groups[: self.work.context])),
            expert=_plain(inside),
            expert_replica=_plain(among),
        )

    def _parts_of(self, replicas: tuple[Group, ...]) -> tuple[Group, ...]:
        """The tensor-parallel groups of all replicas."""
        return tuple(group for replica in replicas for group in tensor_groups(replica, self.tensor))

    def _pipe_route(self, left: tuple[Group, ...], right: tuple[Group, ...]) -> Route | None:
        try:
            if self.dealt:
                return any_to_any_route(self.problem, left, right)
            return pipe_route(self.problem, left, right)
        except InputError:
            return None

    def _stage_arrays(self, config: Config, held: int, late: int, routes: GroupRoutes) -> StageArrays:
        """At the level that is fastest among those that fit."""
        choices = [self._at_level(level, config, held, late, routes) for level in self.levels]
        if len(choices) == 1:
            return choices[0]
        best, trades = _fastest_that_fits(choices)
        self.trades_tails |= trades
        return best

    def _at_level(self, level: Level, config: Config, held: int, late: int, routes: GroupRoutes) -> StageArrays:
        level = self._effective(level, config)
        passes, tail = self._priced(level, config, routes)
        share = config.replicas if self.dealt else 1
        load = passes / share if share > 1 else passes
        excess = self._excess(level, config, held, late)
        return StageArrays(pass_s=passes, load_s=load, tail_s=tail, excess_bytes=excess)

    def _effective(self, level: Level, config: Config) -> Level:
        """The level, without ZeRO where a stage is its only data-parallel member: they have one price."""
        alone = config.replicas * self.work.context == 1
        return Level(level.recomputation, 0) if alone else level

    def held(self, stages_from_here: int) -> int:
        """Microbatches in flight of a stage whose replicas split each of them."""
        return self._in_flight(self._none, Config(0, 1), stages_from_here)

    def late(self, stages_from_here: int) -> int:
        """Of these, those between I and W when most are in flight; 0 where the backward pass is not split.

        It depends on the stages before alone, and is what a last stage holds: this runs I right after F. As in
        `_in_flight` stages before that are not known are left out, which is too little.
        """
        schedule = SCHEDULES[self.schedule]
        if self.problem.training is None or not schedule.splits_backward or schedule.placement is not Placement.LINE:
            return 0
        before = max(0, (self.context.options.num_stages or 0) - stages_from_here)
        last = PipelineShape(num_stages=before + 1, num_microbatches=self.num_microbatches, dealt=(1,) * (before + 1))
        return schedule.in_flight(last, before)

    def pass_s(self, config: Config) -> Array:
        """Forward and backward seconds without collectives between replicas (which need a placement)."""
        return self._priced(self.levels[0], config, GroupRoutes())[0]

    def passes(self, level: Level, config: Config) -> Array:
        """Forward and backward seconds at one level, on the first groups of the class."""
        routes = self._group_routes(tuple(self.classes[config.device_class][: config.replicas]))
        return self._priced(level, config, routes or GroupRoutes())[0]

    def excess(self, config: Config, held: int, late: int = 0) -> Array:
        """Bytes over the class's limit with `held` microbatches in flight, `late` of them between I and W, at the level
        that needs least."""
        return np.asarray(np.minimum.reduce([self._excess(level, config, held, late) for level in self.levels]))

    def excess_at(self, level: Level, config: Config, held: int, late: int = 0) -> Array:
        """Bytes over the limit at one level."""
        return self._excess(level, config, held, late)

    def late_bytes(self, level: Level, config: Config) -> Array:
        """What I adds to what a microbatch holds until W."""
        key = (level, config)
        if key not in self._late_bytes:
            parts, work, how = self._interval_parts(config), self.work, level.recomputation
            kept = kept_bytes_per_microbatch(parts, work, how, self.tensor, self._sharers(config), work.context)
            self._late_bytes[key] = np.asarray(late_bytes_per_microbatch(parts, work, how, kept))
        return self._late_bytes[key]

    def limit_bytes(self, config: Config) -> int:
        """The least memory of the class's devices."""
        return self._limit(config)

    def shared_bytes(self, level: Level, config: Config) -> tuple[Array, Array]:
        """What stages of one device have together only once: what recomputation makes again, and workspace."""
        setting = self._setting(level, config, GroupRoutes())
        memory = stage_memory(self.problem, self._interval_parts(config), setting, 0)
        zeros = np.zeros((self.num_layers + 1, self.num_layers + 1))
        return zeros + memory["activations_bytes"], zeros + memory["workspace_bytes"]

    def _priced(self, level: Level, config: Config, routes: GroupRoutes) -> tuple[Array, Array]:
        """Seconds of both passes, and of the tail."""
        key = (level, config, routes)
        if key not in self._seconds:
            parts = self._interval_parts(config)
            seconds = stage_seconds(self.problem, parts, self._setting(level, config, routes))
            tail = seconds.all_reduce_s + seconds.optimizer_s + self._tied(parts)
            self._seconds[key] = (
                np.asarray(seconds.forward_s + seconds.backward_s, dtype=float),
                np.asarray(tail, dtype=float),
            )
        return self._seconds[key]

    def _excess(self, level: Level, config: Config, held: int, late: int = 0) -> Array:
        """Bytes over the limit at a level: what is always there, what every microbatch in flight holds, and what the
        late ones do besides."""
        key = (level, config)
        if key not in self._needs:
            parts = self._interval_parts(config)
            without, one = (self._memory(parts, level, config, count) for count in (0, 1))
            self._needs[key] = (without - self._limit(config), one - without)
        always, each = self._needs[key]
        excess = always + held * each
        return np.asarray(excess + late * self.late_bytes(level, config) if late else excess)

    def _interval_parts(self, config: Config) -> StageParts:
        kind, sharers = self.device_type(config), self._sharers(config)
        if (kind, sharers) not in self._parts:
            samples = self.microbatch_size / (sharers * self.work.context)
            prices = self.costs.layer_prices(kind, samples, self.tensor)
            self._parts[kind, sharers] = self.costs.intervals.parts(prices, self.microbatch_size)
        return self._parts[kind, sharers]

    def _sharers(self, config: Config) -> int:
        return 1 if self.dealt else config.replicas

    def _setting(self, level: Level, config: Config, routes: GroupRoutes) -> StageSetting:
        return StageSetting(
            device_type=self.device_type(config),
            tensor=self.tensor,
            replicas=config.replicas,
            sharers=self._sharers(config),
            zero=level.zero,
            recomputation=level.recomputation,
            group_route=routes.group,
            replica_route=routes.replica,
            context=self.work.context,
            expert=self.work.expert,
            reshard=level.reshard,
            context_route=routes.context,
            expert_route=routes.expert,
            expert_replica_route=routes.expert_replica,
        )

    def _tied(self, parts: StageParts) -> Array:
        """Sums of tied gradients with one other stage, over the route between the first and the last device."""
        if not self.problem.graph.tied:
            return np.zeros_like(parts.forward_s)
        ends = (self.classes[0][0][0], self.classes[-1][-1][0])
        try:
            route = ring_route(self.problem, ends)
        except InputError:
            return np.where(parts.tied_bytes > 0, CANNOT_RUN_S, 0.0)
        return np.asarray(tied_all_reduce_s(self.problem, parts.tied_bytes, 2, self.tensor, route))

    def _memory(self, parts: StageParts, level: Level, config: Config, held: int) -> Array:
        setting = self._setting(level, config, GroupRoutes())
        return np.asarray(total_bytes(stage_memory(self.problem, parts, setting, held)))

    def _limit(self, config: Config) -> int:
        """The least memory of the class's devices."""
        c = config.device_class
        if c not in self._limits:
            self._limits[c] = min(self.problem.memory_limits[d] for group in self.classes[c] for d in group)
        return self._limits[c]

    def _boundary_arrays(self, left: Config, right: Config, route: Route) -> BoundaryArrays:
        both = min(left.replicas, right.replicas)
        share = self.tensor * self.work.context * (1 if self.dealt else both)
        pairs = both if self.dealt else 1
        if self.model is SearchModel.CLOSED:
            share = 1
        forward, backward = (self.microbatch_size * cut / share for cut in self._cut)
        if self.problem.training is None:
            backward = np.zeros_like(backward)
        moved = _seconds(route, forward) + _seconds(route, backward)
        none = np.zeros_like(moved)
        blocking = self.model is SearchModel.BLOCKING
        busiest = np.maximum(forward, backward) / route.bandwidth_bytes_per_s / pairs
        return BoundaryArrays(
            moved_s=moved,
            link_s=busiest if self.model is SearchModel.OVERLAPPED else none,
            left_pays_s=moved / pairs if blocking and not self._is_cpu(left) else none,
            right_pays_s=moved / pairs if blocking and not self._is_cpu(right) else none,
        )

    def _is_cpu(self, config: Config) -> bool:
        return self.problem.device_types[self.device_type(config)].kind is DeviceKind.CPU


def _fastest_that_fits(choices: list[StageArrays]) -> tuple[StageArrays, bool]:
    """Per interval the least pass of the levels that fit, then the least tail, then the first; else the least excess.

    Also whether another level that fits has a smaller tail somewhere: then the choice may not be the best of all.
    """
    passes, tails, excess = (
        np.stack([getattr(c, name) for c in choices]) for name in ("pass_s", "tail_s", "excess_bytes")
    )
    fits = excess <= 0
    fast = np.where(fits, passes, np.inf)
    level = np.where(fast <= fast.min(axis=0), tails, np.inf).argmin(axis=0)
    level = np.where(fits.any(axis=0), level, excess.argmin(axis=0))

    def chosen(values: Array) -> Array:
        return np.asarray(np.take_along_axis(values, level[None], axis=0)[0])

    shorter = np.where(fits, tails, np.inf).min(axis=0) < np.where(fits.any(axis=0), chosen(tails), -np.inf)
    trades = bool(np.triu(shorter, 1).any())
    loads = np.stack([c.load_s for c in choices])
    best = StageArrays(
        pass_s=chosen(passes), load_s=chosen(loads), tail_s=chosen(tails), excess_bytes=chosen(excess), level=level
    )
    return best, trades


def _sum(a: Counts, b: Counts) -> Counts:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _boundaries(problem: Problem) -> Array:
    """Per boundary j: whether the chain may be cut there without parting colocated layers."""
    allowed = np.ones(len(problem.index) + 1, dtype=bool)
    for group in problem.graph.colocated:
        positions = problem.index.positions(group)
        allowed[positions[0] + 1 : positions[-1] + 1] = False
    return allowed


def _plain(route: Route | None) -> Route | None:
    """The route without its hops, so that equal prices share arrays."""
    if route is None:
        return None
    return Route(bandwidth_bytes_per_s=route.bandwidth_bytes_per_s, latency_s=route.latency_s)


def _seconds(route: Route, num_bytes: Array) -> Array:
    return np.where(num_bytes > 0, route.latency_s + num_bytes / route.bandwidth_bytes_per_s, 0.0)
