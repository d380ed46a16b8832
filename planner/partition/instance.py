"""The bottleneck problem in hypergraph form, shared by exact searches and bounds.

A stage S of layer groups on a device of class c loads it with

    f_c(S) = work_c(S) + overhead_c + sum of the costs of the tensors that S cuts (none where a class pays no transfers)

where S cuts a tensor when some, but not all, of the groups that make or read it are in S. Stages are differences of a
chain of ideals; a partition's value is its largest load. This is the `blocking` search model on single devices
(Tarnawski et al. 2020, Archer et al. 2024): a cut tensor is either received or sent, once, never both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.cluster import DeviceKind
from planner.costs.compute import UNSUPPORTED_S
from planner.costs.memory import MAX_DENOMINATOR
from planner.costs.model import CostModel
from planner.costs.parts import carries_gradient
from planner.ideals import Groups, group_layers, set_of
from planner.problem import Problem
from planner.profile import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One tensor. `groups` (bitset) make or read it; a stage that cuts it pays `cost_s` and, as a reader, holds
    `received_bytes`, as its maker `returned_bytes` (the gradient)."""

    groups: int
    cost_s: float
    received_bytes: int = 0
    returned_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """`count` equal devices. `work_s` per group (infinite: cannot run it), `overhead_s` once per stage; `size_bytes`
    per group and `limit_bytes` per device; `pays` is False for devices that transfer in no time."""

    count: int
    work_s: Sequence[float]
    size_bytes: Sequence[int]
    limit_bytes: int
    overhead_s: float = 0.0
    pays: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckInstance:
    """Groups with their precedence, tensors, device classes.

    `num_stages` fixes how many stages there are, `max_stages` limits them (both None: as many as there are devices).
    """

    groups: Groups
    cuts: tuple[Cut, ...]
    classes: tuple[DeviceClass, ...]
    num_stages: int | None = None
    max_stages: int | None = None

    @property
    def num_devices(self) -> int:
        """Devices of all classes."""
        return sum(entry.count for entry in self.classes)

    @property
    def most_stages(self) -> int:
        """How many stages a partition can have."""
        limits = (self.num_devices, len(self.groups), self.num_stages, self.max_stages)
        return min(limit for limit in limits if limit is not None)


def bottleneck_instance(
    problem: Problem,
    costs: CostModel,
    batch: tuple[int, int],
    *,
    held: int = 1,
    whole_memory: bool = False,
    num_stages: int | None = None,
) -> BottleneckInstance:
    """The instance of a problem at one (microbatch size, number of microbatches), seconds per microbatch.

    `held` microbatches of activations count as memory; `whole_memory` subtracts the largest workspace from the limits,
    so that what fits here fits in the cost model too. Without it the memory is a relaxation. Latency, and the backward
    overhead of stages that only partly run backward, are left out: values are lower bounds then, and exact without
    them. Single devices only; all routes must have one bandwidth.
    """
    groups = group_layers(problem.index)
    classes: dict[tuple[str, int], int] = {}
    for device in problem.cluster.devices:
        if device.type in problem.profile_of:
            key = (device.type, problem.memory_limits[device.id])
            classes[key] = classes.get(key, 0) + 1
    return BottleneckInstance(
        groups=groups,
        cuts=_cuts(problem, groups, batch[0]),
        classes=tuple(
            _device_class(problem, costs, groups, batch, kind, count, (limit, held, whole_memory))
            for (kind, limit), count in classes.items()
        ),
        num_stages=num_stages,
    )


def _device_class(
    problem: Problem,
    costs: CostModel,
    groups: Groups,
    batch: tuple[int, int],
    kind: str,
    count: int,
    memory: tuple[int, int, bool],
) -> DeviceClass:
    prices = costs.layer_prices(kind, batch[0], 1)
    limit, held, whole = memory
    size = [s + held * kept for s, kept in zip(_static_bytes(problem, kind), prices.activation_bytes, strict=True)]
    work = [
        f + b + o / batch[1] if f < UNSUPPORTED_S else math.inf
        for f, b, o in zip(prices.forward_s, prices.backward_s, prices.optimizer_s, strict=True)
    ]
    passes = 2 if problem.training and all(problem.index.runs_backward) else 1
    return DeviceClass(
        count=count,
        work_s=[sum(work[i] for i in members) for members in groups.layers],
        size_bytes=[sum(size[i] for i in members) for members in groups.layers],
        limit_bytes=limit - (max(prices.workspace_bytes) if whole else 0),
        overhead_s=passes * problem.profile_of[kind].action_overhead_s,
        pays=problem.device_types[kind].kind is not DeviceKind.CPU,
    )


def _static_bytes(problem: Problem, kind: str) -> list[int]:
    """Per layer: weights, gradients and optimizer state, rounded down (whole bytes are checked on the plan)."""
    work, training = problem.workload, problem.training
    size = DTYPE_BYTES[problem.profile_of[kind].dtype]
    weights = Fraction(work.weight_bytes_per_parameter).limit_denominator(MAX_DENOMINATOR)
    state = Fraction(0)
    if training is not None:
        optimizer = 0.0 if training.offload_optimizer else training.optimizer_bytes_per_parameter
        for value in (training.gradient_bytes_per_parameter, optimizer):
            state += Fraction(value).limit_denominator(MAX_DENOMINATOR)
    return [
        math.floor(layer.parameter_bytes * (weights + (state if layer.trainable else 0)) / size)
        for layer in problem.index.layers
    ]


def _cuts(problem: Problem, groups: Groups, samples: int) -> tuple[Cut, ...]:
    """The tensors between groups; those between the same groups are one."""
    bandwidth = _bandwidth(problem)
    index, made = problem.index, dict[int, Cut]()
    for number, tensor in enumerate(index.tensors):
        ends = set_of({groups.of_layer[i] for i in (tensor.source, *tensor.targets)})
        if not ends & ends - 1:
            continue
        num_bytes = samples * tensor.bytes_per_sample
        returned = num_bytes if problem.training and carries_gradient(index, number) else 0
        here = Cut(
            groups=ends,
            cost_s=(num_bytes + returned) / bandwidth,
            received_bytes=num_bytes,
            returned_bytes=returned,
        )
        made[ends] = joined(made[ends], here) if ends in made else here
    return tuple(made.values())


def simple_bound_s(instance: BottleneckInstance) -> float:
    """The heaviest group, and all work spread over all stages, on the quickest class for each group."""
    classes = [entry for entry in instance.classes if entry.count]
    least = [min(entry.work_s[g] for entry in classes) for g in range(len(instance.groups))] if classes else []
    finite = [work for work in least if math.isfinite(work)]
    spread = sum(finite) / instance.most_stages if instance.most_stages else 0.0
    return max(spread, max(finite, default=0.0))


def joined(a: Cut, b: Cut) -> Cut:
    """Two tensors between the same groups as one."""
    return Cut(
        groups=a.groups,
        cost_s=a.cost_s + b.cost_s,
        received_bytes=a.received_bytes + b.received_bytes,
        returned_bytes=a.returned_bytes + b.returned_bytes,
    )


def _bandwidth(problem: Problem) -> float:
    """The one bandwidth between devices that are used; any where there is one device."""
    ids = [device.id for device in problem.cluster.devices if device.type in problem.profile_of]
    route = problem.network.route(ids[0], ids[1]) if len(ids) > 1 else None
    return route.bandwidth_bytes_per_s if route else math.inf
