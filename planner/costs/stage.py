"""The price of one stage: seconds of its passes, its all-reduce and its optimizer step.

Works on numbers and, for all intervals of an order at once, on numpy arrays (`StageParts` decides).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.cluster import Route
from planner.costs.communication import all_to_all_s, ring_all_reduce_s, ring_gather_s, ring_pass_s
from planner.costs.memory import memory_bytes, undivided_bytes
from planner.costs.parts import Number, StageParts
from planner.errors import InputError
from planner.problem import Problem
from planner.profile import DTYPE_BYTES
from planner.workload import Recomputation

EXPERT_EXCHANGES = 2
"""All-to-alls per pass: rows are dispatched to their experts and combined again."""
CONTEXT_BACKWARD_PASSES = 2
"""Rounds of a backward pass: keys and values once more, and their gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetting:
    """How a stage runs, apart from its layers.

    `replicas` is the replication degree, `sharers` how many of them split one microbatch (1 when microbatches are
    dealt). `group_route` joins the members of a tensor-parallel group, `context_route` these groups inside one replica,
    `replica_route` all of them (the data-parallel group), `expert_route` the members of an expert group,
    `expert_replica_route` the groups that hold the same experts. None for one member.
    """

    device_type: str
    tensor: int
    replicas: int
    sharers: int
    zero: int
    recomputation: Recomputation
    group_route: Route | None
    replica_route: Route | None
    context: int = 1
    expert: int = 1
    reshard: bool = True
    context_route: Route | None = None
    expert_route: Route | None = None
    expert_replica_route: Route | None = None

    @property
    def members(self) -> int:
        """Of the data-parallel group: gradients of the dense weights are summed over so many tensor-parallel groups."""
        return self.replicas * self.context

    @property
    def splits(self) -> int:
        """Tensor-parallel groups that share the tokens of one microbatch."""
        return self.sharers * self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Seconds per microbatch of the passes, per iteration of all-reduce and optimizer step.

    `scatter_s` is the part of a backward pass that hands gradients to those who keep them (ZeRO 2 and 3).
    """

    forward_s: Number
    backward_s: Number
    all_reduce_s: Number
    optimizer_s: Number
    scatter_s: Number = 0.0


def stage_seconds(problem: Problem, parts: StageParts, setting: StageSetting) -> StageSeconds:
    """Compute, collectives of the stage's groups, recomputation and ZeRO's gathers in one place.

    forward  = layers + overhead + collectives (+ gather of the weights under ZeRO 3 with resharding)
    backward = layers + overhead + collectives (+ what is recomputed, + gather again, + reduce-scatter of the gradients
               under ZeRO 2 and 3, whose members keep no more than their share from one microbatch to the next)
    """
    training = problem.training is not None
    overhead = problem.profile_of[setting.device_type].action_overhead_s
    exchange = _Exchanges(parts, setting)
    state = _State.of(problem, parts, setting) if training or setting.zero >= 3 else None
    gather = state.gather_s(setting) if state is not None and _gathers_in_passes(setting) else 0.0
    runs = parts.runs_backward if training else 0
    scatter = runs * state.scatter_s(setting) if training and state is not None and setting.zero >= 2 else 0.0
    again = _recompute_s(parts, setting, exchange)
    return StageSeconds(
        forward_s=parts.forward_s + overhead + exchange.forward_s() + gather,
        backward_s=runs * (parts.backward_s + overhead + exchange.backward_s() + again + gather) + scatter,
        all_reduce_s=state.exchange_s(setting) if training and state is not None else 0.0 * parts.forward_s,
        optimizer_s=_optimizer_s(parts, setting) + (state.offload_s(problem, setting) if state is not None else 0.0),
        scatter_s=scatter,
    )


def stage_memory(problem: Problem, parts: StageParts, setting: StageSetting, in_flight: Number) -> dict[str, Number]:
    """`memory_bytes` of a stage that runs like this."""
    return memory_bytes(
        parts,
        problem.workload,
        dtype=problem.profile_of[setting.device_type].dtype,
        tensor=setting.tensor,
        replicas=setting.replicas,
        sharers=setting.sharers,
        zero=setting.zero,
        recomputation=setting.recomputation,
        in_flight=in_flight,
        context=setting.context,
        expert=setting.expert,
        reshard=setting.reshard,
    )


class _Exchanges:
    """Collectives inside one pass: tensor-parallel sums, experts' rows, keys and values of the rest of the context."""

    def __init__(self, parts: StageParts, setting: StageSetting) -> None:
        self._parts, self._setting = parts, setting

    def forward_s(self) -> Number:
        """Once each; rows go to the experts and come back."""
        parts = self._parts
        return self._tensor_s(parts.collective_bytes) + self._experts_s(parts.dispatch_bytes) + self.context_s()

    def backward_s(self) -> Number:
        """As much again; keys and values go around with their gradients."""
        parts, passes = self._parts, CONTEXT_BACKWARD_PASSES
        moved = self._tensor_s(parts.collective_backward_bytes) + self._experts_s(parts.dispatch_backward_bytes)
        return moved + passes * self._context_s(parts.context_backward_bytes)

    def context_s(self) -> Number:
        """Keys and values of one forward pass around the context-parallel group."""
        return self._context_s(self._parts.context_bytes)

    def _tensor_s(self, num_bytes: Number) -> Number:
        return ring_all_reduce_s(num_bytes / self._setting.splits, self._setting.tensor, self._setting.group_route)

    def _experts_s(self, num_bytes: Number) -> Number:
        if self._setting.expert == 1:
            return 0.0
        mine = num_bytes / (self._setting.splits * self._setting.tensor)
        return EXPERT_EXCHANGES * all_to_all_s(mine, self._setting.expert, self._setting.expert_route)

    def _context_s(self, num_bytes: Number) -> Number:
        if self._setting.context == 1:
            return 0.0
        mine = num_bytes / (self._setting.sharers * self._setting.tensor)
        return ring_pass_s(mine, self._setting.context, self._setting.context_route)


def _recompute_s(parts: StageParts, setting: StageSetting, exchange: _Exchanges) -> Number:
    """Seconds that recomputation adds to the backward pass; the attention core needs the keys and values again."""
    match setting.recomputation:
        case Recomputation.FULL:
            return parts.forward_s + exchange.forward_s()
        case Recomputation.SELECTIVE:
            return parts.selective_s + exchange.context_s()
        case Recomputation.NONE:
            return 0.0


def _optimizer_s(parts: StageParts, setting: StageSetting) -> Number:
    """The optimizer step of the parameters that one device updates: under ZeRO a share of its data-parallel group."""
    members = setting.members if setting.zero >= 1 else 1
    if setting.expert == 1:
        return parts.optimizer_s / members
    peers = members // setting.expert if setting.zero >= 1 else 1
    dense = parts.optimizer_s - parts.expert_optimizer_s
    return dense / members + parts.expert_optimizer_s / (setting.expert * peers)


def tied_all_reduce_s(problem: Problem, shared_bytes: Number, holders: int, tensor: int, route: Route | None) -> Number:
    """Seconds in which the stages that hold a copy of tied parameters sum their gradients."""
    if problem.training is None:
        return 0.0 * shared_bytes
    size = problem.training.gradient_bytes_per_parameter / dtype_bytes(problem)
    return ring_all_reduce_s(shared_bytes * size / tensor, holders, route)


def dtype_bytes(problem: Problem) -> int:
    """Bytes of one parameter in `Layer.parameter_bytes` (all profiles of a problem have one dtype)."""
    return DTYPE_BYTES[problem.profiles[0].dtype]


@dataclass(frozen=True, slots=True)
class _State:
    """Whole weights and gradients of one device before any ZeRO division: dense ones, and those of its experts."""

    weights: Number
    gradients: Number
    expert_weights: Number
    expert_gradients: Number

    @classmethod
    def of(cls, problem: Problem, parts: StageParts, setting: StageSetting) -> _State:
        """With an expert degree the experts are what the stage holds more than the same stage without them."""
        dtype, tensor, expert = problem.profile_of[setting.device_type].dtype, setting.tensor, setting.expert

        def held(of: StageParts) -> tuple[Number, Number]:
            return undivided_bytes(of, problem.workload, dtype=dtype, tensor=tensor, expert=expert)

        if expert == 1:
            return cls(*held(parts), 0, 0)
        dense = replace(
            parts,
            parameter_bytes=parts.parameter_bytes - parts.expert_bytes,
            trainable_bytes=parts.trainable_bytes - parts.trainable_expert_bytes,
            expert_bytes=0 * parts.expert_bytes,
            trainable_expert_bytes=0 * parts.trainable_expert_bytes,
        )
        (weights, gradients), both = held(dense), held(parts)
        return cls(weights, gradients, both[0] - weights, both[1] - gradients)

    def gather_s(self, setting: StageSetting) -> Number:
        """All-gather of the weights that the data-parallel group has divided among itself."""
        dense = ring_gather_s(self.weights, setting.members, setting.replica_route)
        if setting.expert == 1:
            return dense
        return dense + ring_gather_s(self.expert_weights, *_expert_peers(setting))

    def exchange_s(self, setting: StageSetting) -> Number:
        """Once per iteration: all-reduce of gradients; under ZeRO their reduce-scatter where the passes do not, and an
        all-gather of the weights where the passes do not."""
        scattered = self.scatter_s(setting)
        if setting.zero == 0:
            return 2 * scattered
        gathered = 0.0 if _gathers_in_passes(setting) else self.gather_s(setting)
        return gathered + (scattered if setting.zero == 1 else 0.0 * scattered)

    def scatter_s(self, setting: StageSetting) -> Number:
        """Reduce-scatter of the gradients: half an all-reduce."""
        summed = ring_all_reduce_s(self.gradients, setting.members, setting.replica_route)
        if setting.expert > 1:
            summed = summed + ring_all_reduce_s(self.expert_gradients, *_expert_peers(setting))
        return summed / 2

    def offload_s(self, problem: Problem, setting: StageSetting) -> Number:
        """Gradients down to the host and updated weights back up, where the optimizer state is there."""
        if problem.training is None or not problem.training.offload_optimizer:
            return 0.0 * self.weights
        members = setting.members if setting.zero >= 1 else 1
        peers = members // setting.expert if setting.zero >= 1 else 1
        moved = (self.weights + self.gradients) / members + (self.expert_weights + self.expert_gradients) / peers
        return moved / _host_bandwidth(problem, setting.device_type)


def _gathers_in_passes(setting: StageSetting) -> bool:
    """Whether every pass gathers the weights and frees them again."""
    return setting.zero >= 3 and setting.reshard


def _expert_peers(setting: StageSetting) -> tuple[int, Route | None]:
    """How many tensor-parallel groups hold the same experts, and the route between them."""
    return setting.members // setting.expert, setting.expert_replica_route


def _host_bandwidth(problem: Problem, device_type: str) -> float:
    bandwidth = problem.device_types[device_type].host_bandwidth_bytes_per_s
    if bandwidth is None:
        raise InputError(
            f"device type {device_type!r} has no host_bandwidth_bytes_per_s, which offload_optimizer needs: give it "
            "(a PCIe 4 link of 16 lanes: 32e9), or keep the optimizer state on the devices",
            pointer="/workload/offload_optimizer",
        )
    return bandwidth
