"""What the MILP needs of the cost model: the price of one unit of each part of a stage.

A stage's prices are linear in its `StageParts`, apart from rounding up to bytes, maxima, and latencies that are paid
when a volume is not zero. So the cost model itself is asked what one unit of a part costs, and no formula is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property

from planner.cluster import DeviceKind, Route
from planner.costs.communication import Group, ring_route
from planner.costs.compute import CANNOT_RUN_S, LayerPrices
from planner.costs.memory import memory_bytes, total_bytes
from planner.costs.parts import StageParts, parts_of
from planner.costs.stage import StageSetting, stage_seconds, tied_all_reduce_s
from planner.graph import TiedParameters
from planner.optimizers.base import SearchContext
from planner.options import Objective
from planner.schedules import SCHEDULES, PipelineShape
from planner.workload import Recomputation, ReplicaMode

UNITS = 2**40
"""So many units are priced at once, so that rounding up to whole bytes does not show."""

LAYER_FIELDS = (
    "forward_s",
    "backward_s",
    "optimizer_s",
    "parameter_bytes",
    "replicated_bytes",
    "trainable_bytes",
    "trainable_replicated_bytes",
    "collective_bytes",
    "collective_backward_bytes",
    "activation_bytes",
    "selective_bytes",
    "selective_s",
    "expert_bytes",
    "trainable_expert_bytes",
    "expert_optimizer_s",
    "dispatch_bytes",
    "dispatch_backward_bytes",
    "context_bytes",
    "context_backward_bytes",
)
"""Parts that are sums over the layers of a stage."""

SHARED_FIELDS = (
    ("parameter_bytes", "replicated_bytes", "expert_bytes"),
    ("trainable_bytes", "trainable_replicated_bytes", "trainable_expert_bytes"),
)
"""Parts that count tied parameters once: of all layers, and of the trainable ones."""

LARGEST_FIELDS = (
    "workspace_bytes",
    "largest_activation_bytes",
    "largest_selective_bytes",
    "largest_dense_bytes",
    "largest_expert_bytes",
)
"""Parts that are those of the layer of a stage that has most."""

LATENCY_FIELDS = ("collective_bytes", "collective_backward_bytes", "parameter_bytes", "trainable_bytes")
"""Volumes whose collectives pay latency once per pass or iteration when they are not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One outer choice: the MILP decides everything else. `replicas` is the degree of every stage."""

    num_stages: int
    replicas: int
    microbatch_size: int
    num_microbatches: int
    schedule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Seconds of passes and tail, bytes of memory. `backward_s` is paid if the stage runs a backward pass."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    tail_s: float = 0.0
    memory_bytes: float = 0.0

    def plus(self, other: Price, times: float = 1.0) -> Price:
        """The sum with `times` the other."""
        return Price(
            forward_s=self.forward_s + times * other.forward_s,
            backward_s=self.backward_s + times * other.backward_s,
            tail_s=self.tail_s + times * other.tail_s,
            memory_bytes=self.memory_bytes + times * other.memory_bytes,
        )


class SettingPrices:
    """Unit prices, layer prices and route of one setting on one class of devices: `groups`, of one type and memory.

    `others` are the groups of other classes that stages may be on; all routes are alike.
    """

    def __init__(
        self, context: SearchContext, setting: Setting, groups: list[Group], others: Sequence[Group] = ()
    ) -> None:
        self.context, self.problem, self.setting = context, context.problem, setting
        self.work = self.problem.workload
        self.groups = groups
        self.device_type = self.problem.devices[groups[0][0]].type
        self.limit_bytes = self.problem.memory_limits[groups[0][0]]
        self.dealt = setting.replicas if context.options.replica_mode is ReplicaMode.DEALT else 1
        self.sharers = setting.replicas // self.dealt
        devices = [device for group in (*groups, *others) for device in group]
        self.route = ring_route(self.problem, devices[:2]) if len(devices) > 1 else None
        training = self.problem.training
        self.zero = training.zero if training else 0
        self.recomputation = training.recomputation if training else Recomputation.NONE
        self._units: dict[tuple[str, int], Price] = {}

    def at(self, setting: Setting) -> SettingPrices:
        """The same prices at another number of stages: they do not depend on it, so that what is known is shared."""
        other = copy(self)
        other.setting = setting
        return other

    @cached_property
    def layer_prices(self) -> LayerPrices:
        """Prices of the layers at the samples that one replica sees."""
        samples = self.setting.microbatch_size / self.sharers
        return self.context.costs.layer_prices(self.device_type, samples, self.work.tensor)

    @cached_property
    def layer_parts(self) -> list[StageParts]:
        """Every layer as a stage of its own."""
        size = self.setting.microbatch_size
        return [parts_of(self.problem, self.layer_prices, [v], size) for v in range(len(self.problem.index))]

    @cached_property
    def constant(self) -> Price:
        """What a stage costs before it has any layer: the overhead of its actions."""
        return self._price(_nothing(), 0, latency=False)

    def unit(self, field: str, in_flight: int = 0) -> Price:
        """The price of one unit of a part, latencies left out."""
        key = (field, in_flight)
        if key not in self._units:
            priced = self._price(replace(_nothing(), **{field: UNITS}), in_flight, latency=False)
            self._units[key] = Price().plus(priced.plus(self.constant, -1.0), 1.0 / UNITS)
        return self._units[key]

    def latency(self, field: str) -> Price:
        """What a stage pays besides when the part is not zero."""
        some = replace(_nothing(), **{field: UNITS})
        return self._price(some, 0, latency=True).plus(self._price(some, 0, latency=False), -1.0)

    def layer(self, number: int, in_flight: int = 0) -> Price:
        """What a layer adds to its stage: the sum over its parts."""
        total = Price()
        for field in LAYER_FIELDS:
            amount = getattr(self.layer_parts[number], field)
            if amount:
                total = total.plus(self.unit(field, in_flight), float(amount))
        return total

    def in_flight(self, stage: int) -> int:
        """Microbatches that the schedule keeps at this stage."""
        shape = PipelineShape(
            num_stages=self.setting.num_stages,
            num_microbatches=self.setting.num_microbatches,
            dealt=(self.dealt,) * self.setting.num_stages,
            forward_only=self.problem.training is None,
        )
        return SCHEDULES[self.setting.schedule].in_flight(shape, stage)

    def tied_s(self, shared_bytes: int) -> float:
        """Seconds in which two stages sum the gradients of shared parameters."""
        return float(tied_all_reduce_s(self.problem, shared_bytes, 2, self.work.tensor, self.route))

    @property
    def most_stages(self) -> int:
        """Stages that the class has enough devices for."""
        return len(self.groups) // self.setting.replicas

    def runs(self, number: int) -> bool:
        """Whether the class can run the layer."""
        return self.layer_prices.forward_s[number] < CANNOT_RUN_S

    @property
    def is_cpu(self) -> bool:
        """Whether transfers cost the stages nothing in the blocking model."""
        return self.problem.device_types[self.device_type].kind is DeviceKind.CPU

    def _price(self, parts: StageParts, in_flight: int, *, latency: bool) -> Price:
        seconds = stage_seconds(self.problem, parts, self._stage_setting(latency))
        by_purpose = memory_bytes(
            parts,
            self.work,
            dtype=self.problem.profile_of[self.device_type].dtype,
            tensor=self.work.tensor,
            replicas=self.setting.replicas,
            sharers=self.sharers,
            zero=self.zero,
            recomputation=self.recomputation,
            in_flight=in_flight,
        )
        return Price(
            forward_s=float(seconds.forward_s),
            backward_s=float(seconds.backward_s),
            tail_s=float(seconds.all_reduce_s + seconds.optimizer_s),
            memory_bytes=float(total_bytes(by_purpose)),
        )

    def _stage_setting(self, latency: bool) -> StageSetting:
        route = self.route
        if route is not None:
            route = Route(
                bandwidth_bytes_per_s=route.bandwidth_bytes_per_s, latency_s=route.latency_s if latency else 0.0
            )
        return StageSetting(
            device_type=self.device_type,
            tensor=self.work.tensor,
            replicas=self.setting.replicas,
            sharers=self.sharers,
            zero=self.zero,
            recomputation=self.recomputation,
            group_route=route if self.work.tensor > 1 else None,
            replica_route=route if self.setting.replicas > 1 else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What no plan of some settings undercuts: work shared evenly, the heaviest layer, no transfer, the largest tail.

    Each on the class of devices on which it is least; infinite when no class can run some layer. It serves all numbers
    of stages.
    """

    total_s: float
    heaviest_s: float
    overhead_s: float
    tail_s: float
    dealt: int

    def value_s(self, setting: Setting, objective: Objective) -> float:
        """The least objective of a setting."""
        if math.isinf(self.total_s):
            return math.inf
        period = max(self.heaviest_s, self.total_s / setting.num_stages) + self.overhead_s
        if objective is Objective.THROUGHPUT:
            return period / self.dealt / setting.microbatch_size
        rest = (setting.num_microbatches - 1) * period / self.dealt
        return self.total_s + setting.num_stages * self.overhead_s + rest + self.tail_s


def floor_of(classes: Sequence[SettingPrices]) -> Floor:
    """The floor at the replication degree and batch of these prices. O(layers)."""
    able = [[prices for prices in classes if prices.runs(v)] for v in range(len(classes[0].problem.index))]
    dealt = classes[0].dealt
    if not all(able):
        return Floor(total_s=math.inf, heaviest_s=math.inf, overhead_s=0.0, tail_s=0.0, dealt=dealt)
    passes = [min(_pass_s(prices, v) for prices in those) for v, those in enumerate(able)]
    return Floor(
        total_s=sum(passes) - max(map(_tied_passes, classes)),
        heaviest_s=max(passes),
        overhead_s=min(map(_overhead_s, classes)),
        tail_s=max(min(prices.layer(v).tail_s for prices in those) for v, those in enumerate(able)),
        dealt=dealt,
    )


def _pass_s(prices: SettingPrices, v: int) -> float:
    """Seconds of both passes of a layer."""
    layer = prices.layer(v)
    return layer.forward_s + (layer.backward_s if prices.problem.index.runs_backward[v] else 0.0)


def _overhead_s(prices: SettingPrices) -> float:
    """What every stage pays for its actions."""
    return prices.constant.forward_s + (prices.constant.backward_s if all(prices.problem.index.runs_backward) else 0.0)


def _tied_passes(prices: SettingPrices) -> float:
    """The most that sharing parameters inside a stage can take off the passes (ZeRO gathers and scatters them once)."""
    most = Price()
    for tied in prices.problem.graph.tied:
        for names in SHARED_FIELDS:
            most = most.plus(shared_price(tied, names, prices.unit), len(tied.layers) - 1)
    return max(0.0, most.forward_s + most.backward_s)


def shared_price(tied: TiedParameters, names: Sequence[str], unit: Callable[[str], Price]) -> Price:
    """What one copy of shared parameters costs in the parts `names` (of `SHARED_FIELDS`)."""
    shares = (tied.parameter_bytes, tied.replicated_parameter_bytes, tied.expert_parameter_bytes)
    total = Price()
    for name, share in zip(names, shares, strict=True):
        total = total.plus(unit(name), float(share))
    return total


def _nothing() -> StageParts:
    """A stage without layers that would run a backward pass."""
    return StageParts(
        **{field.name: 0 for field in fields(StageParts) if field.name != "runs_backward"}, runs_backward=1
    )
