"""The cost model: prices every stage, transfer and collective of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

from planner.cluster import DeviceKind, Route
from planner.costs.communication import (
    any_to_any_route,
    expert_routes,
    pipe_route,
    replica_ring_route,
    ring_route,
    tensor_groups,
)
from planner.costs.compute import LayerPrices, layer_prices
from planner.costs.holding import Holding, on_one_device
from planner.costs.memory import kept_bytes_per_microbatch, late_bytes_per_microbatch, total_bytes
from planner.costs.parts import StageParts, carries_gradient, parts_of
from planner.costs.split import SplitSeconds, split_seconds
from planner.costs.stage import StageSeconds, StageSetting, stage_memory, stage_seconds, tied_all_reduce_s
from planner.errors import InputError
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.schedules import SCHEDULES, Kept, PipelineShape
from planner.timeline import MemoryParts
from planner.workload import ReplicaMode

if TYPE_CHECKING:
    from planner.costs.intervals import Intervals

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStage:
    """One stage of a plan with its prices. `layers` are positions; `dealt` is the number of replicas among which whole
    microbatches are dealt. `split` is the backward pass in two parts, `kept` what one microbatch holds; `memory` is for
    a device with all its stages, which keep at most `kept_peak_bytes` together.
    """

    stage: Stage
    layers: tuple[int, ...]
    parts: StageParts
    seconds: StageSeconds
    sharers: int
    dealt: int
    is_cpu: bool
    tied_s: float
    kept: Kept
    transient_bytes: int
    in_flight: int
    kept_peak_bytes: int
    memory: MemoryParts
    split: SplitSeconds

    @property
    def kept_bytes(self) -> int:
        """What one microbatch keeps from its forward to its backward pass."""
        return self.kept.from_forward

    @property
    def pass_s(self) -> float:
        """Forward and backward seconds of one microbatch."""
        return float(self.seconds.forward_s + self.seconds.backward_s)

    @property
    def summing_s(self) -> float:
        """Collectives of the stage's gradients, once per iteration."""
        return float(self.seconds.all_reduce_s + self.tied_s)

    @property
    def tail_s(self) -> float:
        """What the stage adds once per iteration to its passes."""
        return self.summing_s + float(self.seconds.optimizer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedTransfer:
    """What stage `source` sends to stage `target` for one microbatch, and the gradients that come back.

    `share` is by how many links at a time the replicas move it; `tensors` are the tensor numbers.
    """

    source: int
    target: int
    tensors: tuple[int, ...]
    forward_bytes: int
    backward_bytes: int
    route: Route
    share: int

    def forward_s(self) -> float:
        """Seconds of the activations of one microbatch."""
        return self.route.seconds(self.forward_bytes / self.share)

    def backward_s(self) -> float:
        """Seconds of the gradients of one microbatch."""
        return self.route.seconds(self.backward_bytes / self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan with every price that the objective functions, the simulator and `verify` need."""

    plan: Plan
    shape: PipelineShape
    stages: tuple[PricedStage, ...]
    transfers: tuple[PricedTransfer, ...]


class CostModel:
    """Prices plans of one problem; remembers layer prices per device type, samples and tensor degree."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._prices: dict[tuple[str, float, int], LayerPrices] = {}
        self._memory_of: dict[tuple[object, ...], object] = {}

    def remember(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """What `make` returned for this key the first time; for what follows from the problem and the key alone."""
        if key not in self._memory_of:
            self._memory_of[key] = make()
        return cast("T", self._memory_of[key])

    def layer_prices(self, device_type: str, samples: float, tensor: int) -> LayerPrices:
        """See `planner.costs.compute.layer_prices`."""
        key = (device_type, samples, tensor)
        if key not in self._prices:
            self._prices[key] = layer_prices(self.problem, device_type, samples, tensor)
        return self._prices[key]

    @cached_property
    def intervals(self) -> Intervals:
        """Sums over all intervals of the order."""
        from planner.costs.intervals import Intervals  # numpy takes its time to import

        return Intervals(self.problem)

    def price(self, plan: Plan) -> PricedPlan:
        """Price a plan whose ids are known (`verify` checks that first).

        Raises InputError for what has no price: unequal groups, degrees without costs, devices without a route.
        """
        stage_of = self._stage_of(plan)
        shape = shape_of(self.problem, plan)
        holding = Holding(SCHEDULES[plan.schedule], shape)
        alone = [self._stage(plan, shape, number, stage_of) for number in range(len(plan.stages))]
        return PricedPlan(
            plan=plan,
            shape=shape,
            stages=tuple(_on_their_devices(shape, holding, alone)),
            transfers=self._transfers(plan, stage_of),
        )

    @cached_property
    def _is_cpu(self) -> dict[str, bool]:
        return {kind.name: kind.kind is DeviceKind.CPU for kind in self.problem.cluster.device_types}

    def _stage_of(self, plan: Plan) -> list[int]:
        stage_of = [-1] * len(self.problem.index)
        for number, stage in enumerate(plan.stages):
            for name in stage.layers:
                stage_of[self.problem.index.position[name]] = number
        return stage_of

    def _stage(self, plan: Plan, shape: PipelineShape, number: int, stage_of: list[int]) -> PricedStage:
        stage = plan.stages[number]
        sharers = 1 if plan.replica_mode is ReplicaMode.DEALT else len(stage.replicas)
        check_degrees(stage, number, sharers)
        layers = tuple(self.problem.index.positions(stage.layers))
        by_type = {
            kind: self._on_type(kind, stage, layers, sharers, plan.microbatch_size)
            for kind in sorted({self.problem.devices[d].type for group in stage.replicas for d in group})
        }
        kind, (setting, parts, seconds) = max(by_type.items(), key=lambda item: _slowness(item[1][2]))
        prices = self.layer_prices(kind, plan.microbatch_size / (sharers * stage.context), stage.tensor)
        memory = self._memory_parts(parts, stage, setting)
        return PricedStage(
            stage=stage,
            layers=layers,
            parts=parts,
            seconds=seconds,
            sharers=sharers,
            dealt=shape.dealt[number],
            is_cpu=self._is_cpu[kind],
            tied_s=self._tied_s(plan, number, stage_of),
            kept=self._kept(parts, stage, sharers),
            transient_bytes=memory.activations_bytes,
            in_flight=0,
            kept_peak_bytes=0,
            memory=memory,
            split=split_seconds(
                parts,
                seconds,
                prices,
                layers,
                self.problem.profile_of[kind].action_overhead_s,
            ),
        )

    def _kept(self, parts: StageParts, stage: Stage, sharers: int) -> Kept:
        """What one microbatch of the stage keeps, and what I adds."""
        work, recomputation = self.problem.workload, stage.recomputation
        kept = kept_bytes_per_microbatch(parts, work, recomputation, stage.tensor, sharers, stage.context)
        late = late_bytes_per_microbatch(parts, work, recomputation, kept)
        return Kept(from_forward=kept, from_input_gradient=late)

    def _on_type(
        self, kind: str, stage: Stage, layers: Sequence[int], sharers: int, microbatch_size: int
    ) -> tuple[StageSetting, StageParts, StageSeconds]:
        if kind not in self.problem.profile_of:
            raise InputError(f"device type {kind!r} has no profile: profile it, or keep its devices idle")
        prices = self.layer_prices(kind, microbatch_size / (sharers * stage.context), stage.tensor)
        parts = parts_of(self.problem, prices, layers, microbatch_size)
        setting = self._setting(kind, stage, sharers)
        return setting, parts, stage_seconds(self.problem, parts, setting)

    def _setting(self, kind: str, stage: Stage, sharers: int) -> StageSetting:
        groups = [group for replica in stage.replicas for group in tensor_groups(replica, stage.tensor)]
        inside, among = expert_routes(self.problem, groups, stage.expert)
        return StageSetting(
            device_type=kind,
            tensor=stage.tensor,
            replicas=len(stage.replicas),
            sharers=sharers,
            zero=stage.zero,
            recomputation=stage.recomputation,
            group_route=ring_route(self.problem, groups[0]),
            replica_route=replica_ring_route(self.problem, groups),
            context=stage.context,
            expert=stage.expert,
            reshard=stage.reshard,
            context_route=replica_ring_route(self.problem, groups[: stage.context]),
            expert_route=inside,
            expert_replica_route=among,
        )

    def _memory_parts(self, parts: StageParts, stage: Stage, setting: StageSetting) -> MemoryParts:
        """Of the stage alone, with no microbatch in flight."""
        by_purpose = stage_memory(self.problem, parts, setting, 0)
        limit = min(self.problem.memory_limits[d] for group in stage.replicas for d in group)
        return MemoryParts(**by_purpose, total_bytes=total_bytes(by_purpose), limit_bytes=limit)

    def _tied_s(self, plan: Plan, number: int, stage_of: list[int]) -> float:
        """Seconds in which this stage sums gradients of tied parameters with the other stages that hold them."""
        seconds = 0.0
        for holders, shared in tied_between_stages(self.problem, stage_of):
            if number in holders:
                firsts = [plan.stages[s].replicas[0][0] for s in holders]
                route = ring_route(self.problem, firsts)
                seconds += tied_all_reduce_s(self.problem, shared, len(holders), plan.stages[number].tensor, route)
        return seconds

    def _transfers(self, plan: Plan, stage_of: list[int]) -> tuple[PricedTransfer, ...]:
        moved: dict[tuple[int, int], list[int]] = {}
        for number, tensor in enumerate(self.problem.index.tensors):
            source = stage_of[tensor.source]
            for target in sorted({stage_of[t] for t in tensor.targets} - {source}):
                moved.setdefault((source, target), []).append(number)
        return tuple(self._transfer(plan, *ends, tensors) for ends, tensors in sorted(moved.items()))

    def _transfer(self, plan: Plan, source: int, target: int, tensors: list[int]) -> PricedTransfer:
        index, samples = self.problem.index, plan.microbatch_size
        a, b = plan.stages[source], plan.stages[target]
        back = [t for t in tensors if carries_gradient(index, t)] if self.problem.training else []
        replicas = 1 if plan.replica_mode is ReplicaMode.DEALT else min(len(a.replicas), len(b.replicas))
        dealt = plan.replica_mode is ReplicaMode.DEALT
        return PricedTransfer(
            source=source,
            target=target,
            tensors=tuple(tensors),
            forward_bytes=samples * sum(index.tensors[t].bytes_per_sample for t in tensors),
            backward_bytes=samples * sum(index.tensors[t].bytes_per_sample for t in back),
            route=self._dealt_route(a, b) if dealt else pipe_route(self.problem, a.replicas, b.replicas),
            share=replicas * min(a.tensor, b.tensor) * min(a.context, b.context),
        )

    def _dealt_route(self, a: Stage, b: Stage) -> Route:
        """Any replica may send to any other when whole microbatches are dealt in turn."""
        return any_to_any_route(self.problem, a.replicas, b.replicas)


def shape_of(problem: Problem, plan: Plan) -> PipelineShape:
    """The plan as its schedule sees it."""
    dealt = plan.replica_mode is ReplicaMode.DEALT
    return PipelineShape(
        num_stages=len(plan.stages),
        num_microbatches=plan.num_microbatches,
        dealt=tuple(len(stage.replicas) if dealt else 1 for stage in plan.stages),
        forward_only=problem.training is None,
        rank_of=plan.rank_of,
        options=plan.schedule_options,
        actions=plan.actions,
    )


def _on_their_devices(shape: PipelineShape, holding: Holding, alone: Sequence[PricedStage]) -> Iterator[PricedStage]:
    """The stages with what they and the others on their devices hold at once."""
    peaks = holding.peak_bytes([stage.kept for stage in alone])
    on_rank: dict[int, list[PricedStage]] = {}
    for rank, stage in zip(shape.ranks, alone, strict=True):
        on_rank.setdefault(rank, []).append(stage)
    for number, rank in enumerate(shape.ranks):
        together = on_rank[rank]
        yield replace(
            alone[number],
            in_flight=holding.in_flight(number),
            kept_peak_bytes=peaks[number],
            memory=on_one_device([s.memory for s in together], peaks[number], [s.transient_bytes for s in together]),
        )


def tied_between_stages(problem: Problem, stage_of: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """(stages that hold a trainable copy, shared bytes) for every tied set that more than one stage holds."""
    index, found = problem.index, []
    for tied in problem.graph.tied:
        positions = [index.position[name] for name in tied.layers]
        holders = tuple(sorted({stage_of[i] for i in positions if index.layers[i].trainable}))
        if len(holders) > 1:
            found.append((holders, tied.parameter_bytes))
    return found


def check_degrees(stage: Stage, number: int, sharers: int) -> None:
    """The expert degree divides the tensor-parallel groups that run a microbatch together.

    `sharers` replicas split each microbatch: with dealt ones, which run different microbatches, experts are spread
    inside one replica only.
    """
    groups = sharers * stage.context
    if groups % stage.expert:
        raise InputError(
            f"stage {number} has expert degree {stage.expert}, but {groups} tensor-parallel groups run a microbatch "
            f"together (context {stage.context} x {sharers} replicas that split it): use one that divides {groups}",
            pointer=f"/plan/stages/{number}/expert",
        )


def _slowness(seconds: StageSeconds) -> float:
    return float(seconds.forward_s + seconds.backward_s)
