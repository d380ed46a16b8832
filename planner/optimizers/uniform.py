"""`uniform`: what people do today. Equal layer counts, equal replication, all devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise, product

from planner.costs.communication import Group
from planner.costs.objective import objective_s
from planner.joint import spreads_experts
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext, divisors
from planner.options import Level, Objective, Replication
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.verify import verify
from planner.workload import ReplicaMode

MAX_LAYERS = 1500
TABLES_S = 3e-6
"""Up to so many layers tables of intervals say whether a split has room, where there is time to make them: so many
seconds for each pair of layers, on a busy machine."""
WORTH_TRYING = 1.0
"""Shapes whose estimate is more than this times the best plan's value are not tried."""


@OPTIMIZERS.register
class Uniform:
    """A baseline without any proof: the model is cut into stages of equally many layers, whatever they cost.

    A remainder goes to the first stages, one layer each, as torchtitan and DeepSpeed (`partition_uniform`) do;
    Megatron-LM refuses it. Devices are taken in listed order, the replicas of a stage side by side.
    """

    name = "uniform"
    searches_levels = True
    plans_groups = True

    def supports(self, context: SearchContext) -> str:
        """Works on every graph."""
        if not listed_groups(context.problem):
            work = context.problem.workload
            return f"no type of device has {work.tensor * work.context} of them (tensor x context degree)"
        return ""

    def search(self, context: SearchContext) -> Outcome:
        """Every (stages, replicas) that uses all devices, at every batch, under the frugal schedule.

        Those with the smallest estimate first; none whose estimate is much above the best that was found.
        """
        groups, found, finished = listed_groups(context.problem), list[Candidate](), True
        room = _Room(context)
        best = min((c.objective_s for c in context.incumbents), default=math.inf)
        for number, (estimate_s, batch, stages) in enumerate(_shapes(context, groups)):
            worth = estimate_s <= WORTH_TRYING * best or number < context.options.num_finalists
            if number and (context.clock.expired() or not worth):
                finished = not context.clock.expired()
                break
            fitting = _fitting(context, groups, stages, batch, room.levels(len(groups), stages, batch))
            if fitting is not None:
                found.append(fitting)
                best = min(best, fitting.objective_s)
        found.sort(key=lambda c: (c.objective_s, len(c.plan.stages)))
        return Outcome(
            candidates=tuple(found[: context.options.num_finalists]),
            exact=False,
            scope="stages of equally many layers, equal replication, all devices",
            finished=finished,
            notes=() if found or not finished else ("no equal split of all devices fits",),
        )


def equal_sizes(num_layers: int, num_stages: int) -> list[int]:
    """Layers per stage; the first `num_layers % num_stages` stages take one more."""
    least, remainder = divmod(num_layers, num_stages)
    return [least + (stage < remainder) for stage in range(num_stages)]


def listed_groups(problem: Problem) -> list[Group]:
    """Groups of `tensor * context` devices of one type and memory limit, in listed order."""
    waiting, groups = dict[object, list[str]](), list[Group]()
    size = problem.workload.tensor * problem.workload.context
    for device in problem.cluster.devices:
        if device.type in problem.profile_of:
            members = waiting.setdefault(_kind(problem, device.id), [])
            members.append(device.id)
            if len(members) == size:
                groups.append(tuple(members))
                members.clear()
    return groups


def _kind(problem: Problem, device: str) -> tuple[str, int]:
    return problem.devices[device].type, problem.memory_limits[device]


def _shapes(context: SearchContext, groups: list[Group]) -> list[tuple[float, tuple[int, int], int]]:
    """(estimate in the objective's unit, batch, stages) of every shape, the most promising first.

    With equal stages and W seconds of passes per microbatch and replica: (M + S - 1) W / S for the iteration, W / S per
    microbatch for the throughput, on the first group's device type.
    """
    kind = context.problem.devices[groups[0][0]].type
    work, dealt = context.problem.workload, context.options.replica_mode is ReplicaMode.DEALT
    found = []
    for (size, count), stages in product(context.batches(), _stage_counts(context, len(groups))):
        replicas = len(groups) // stages
        if size % replicas and not dealt:
            continue
        if not spreads_experts(work, context.options.replica_mode, replicas):
            continue
        sharers = 1 if dealt else replicas
        prices = context.costs.layer_prices(kind, size / (sharers * work.context), work.tensor)
        load = (sum(prices.forward_s) + sum(prices.backward_s)) / stages
        period = load / replicas if dealt else load
        whole = (count - 1) * period + stages * load
        by_period = context.options.objective is Objective.THROUGHPUT
        found.append((period / size if by_period else whole, (size, count), stages))
    return sorted(found)


def _stage_counts(context: SearchContext, groups: int) -> list[int]:
    """Stage counts that divide the device groups (all of them, when replicas are not wanted)."""
    counts = [groups] if context.options.replication is Replication.NONE else divisors(groups)
    wanted = context.options.num_stages
    return [s for s in counts if s <= len(context.problem.index) and wanted in (None, s)]


class _Room:
    """At which levels equal splits have room: read off tables where there is one class of devices, for few layers."""

    def __init__(self, context: SearchContext) -> None:
        work = context.problem.workload
        self.context, self.spaces = context, dict[tuple[int, int], ChainSpace]()
        self.classes = device_classes(context.problem, work.tensor)
        split = context.options.replica_mode is ReplicaMode.SPLIT
        num_layers = len(context.problem.index)
        in_time = TABLES_S * num_layers**2 <= context.clock.left_s()
        self.known = split and len(self.classes) == 1 and num_layers <= MAX_LAYERS and in_time

    def levels(self, groups: int, num_stages: int, batch: tuple[int, int]) -> Sequence[Level]:
        """The levels that are worth trying; all where no table says."""
        replicas = groups // num_stages
        if not self.known:
            return self.context.levels
        if batch[0] % replicas:
            return ()
        key = (batch[0], replicas)
        if key not in self.spaces:
            self.spaces[key] = ChainSpace(
                self.context, self.context.schedules[0], batch, (replicas,), classes=self.classes
            )
        space = self.spaces[key]
        return [level for level in space.levels if space.configs and self._fits(space, level, num_stages)]

    def _fits(self, space: ChainSpace, level: Level, num_stages: int) -> bool:
        ends = list(accumulate(equal_sizes(space.num_layers, num_stages), initial=0))
        return all(
            space.excess_at(level, space.configs[0], space.held(left), space.late(left))[i, j] <= 0
            for left, (i, j) in zip(range(num_stages, 0, -1), pairwise(ends), strict=True)
        )


def _fitting(
    context: SearchContext, groups: list[Group], num_stages: int, batch: tuple[int, int], levels: Sequence[Level]
) -> Candidate | None:
    """At the first level that fits, the same for all stages."""
    plans = (_plan(context, groups, num_stages, batch, level) for level in levels)
    return next((c for plan in plans if (c := _candidate(context, plan)) is not None), None)


def _plan(context: SearchContext, groups: list[Group], num_stages: int, batch: tuple[int, int], level: Level) -> Plan:
    problem = context.problem
    replicas = len(groups) // num_stages
    stages, first = [], 0
    for number, size in enumerate(equal_sizes(len(problem.index), num_stages)):
        stages.append(
            Stage(
                layers=tuple(layer.id for layer in problem.index.layers[first : first + size]),
                replicas=tuple(groups[number * replicas : (number + 1) * replicas]),
                tensor=problem.workload.tensor,
                context=problem.workload.context,
                expert=problem.workload.expert,
                recomputation=level.recomputation,
                zero=level.zero,
                reshard=level.reshard,
            )
        )
        first += size
    return Plan(
        stages=tuple(stages),
        schedule=context.schedules[0],
        microbatch_size=batch[0],
        num_microbatches=batch[1],
        replica_mode=context.options.replica_mode,
    )


def _candidate(context: SearchContext, plan: Plan) -> Candidate | None:
    """The plan with its value, unless something is wrong with it or a stage mixes unequal devices (no search does)."""
    if any(len({_kind(context.problem, group[0]) for group in stage.replicas}) > 1 for stage in plan.stages):
        return None
    if verify(plan, context.problem, context.costs):
        return None
    priced = context.costs.price(plan)
    value = objective_s(context.problem, priced, context.options.objective, context.search_model)
    return Candidate(plan=plan, objective_s=value)
