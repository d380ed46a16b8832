"""The price of one stage: seconds of its passes, its all-reduce and its optimizer step.

Works on numbers and, for all intervals of an order at once, on numpy arrays (`StageParts` decides).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cluster import Route
from planner.costs.communication import ring_all_reduce_s, ring_gather_s
from planner.costs.memory import memory_bytes
from planner.costs.parts import Number, StageParts
from planner.problem import Problem
from planner.profile import DTYPE_BYTES
from planner.workload import Recomputation


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetting:
    """How a stage runs, apart from its layers.

    `replicas` is the replication degree, `sharers` how many of them split one microbatch (1 when microbatches are
    dealt). `group_route` joins the members of one replica, `replica_route` the replicas; None for one member.
    """

    device_type: str
    tensor: int
    replicas: int
    sharers: int
    zero: int
    recomputation: Recomputation
    group_route: Route | None
    replica_route: Route | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Seconds per microbatch of the passes, per iteration of all-reduce and optimizer step."""

    forward_s: Number
    backward_s: Number
    all_reduce_s: Number
    optimizer_s: Number


def stage_seconds(problem: Problem, parts: StageParts, setting: StageSetting) -> StageSeconds:
    """Compute, collectives of the tensor-parallel group, recomputation and ZeRO's gathers in one place.

    forward  = layers + overhead + collectives (+ gather of the weights under ZeRO 3)
    backward = layers + overhead + collectives (+ forward again under full recomputation, + gather under ZeRO 3)
    """
    training = problem.training is not None
    profile = problem.profile_of[setting.device_type]
    overhead, t = profile.action_overhead_s, setting.tensor
    shared = ring_all_reduce_s(parts.collective_bytes / setting.sharers, t, setting.group_route)
    shared_back = ring_all_reduce_s(parts.collective_backward_bytes / setting.sharers, t, setting.group_route)
    again = parts.forward_s + shared if setting.recomputation is Recomputation.FULL else 0.0
    weights, gradients = _synchronised_bytes(problem, parts, setting)
    gather = ring_gather_s(weights, setting.replicas, setting.replica_route) if setting.zero >= 3 else 0.0
    runs = parts.runs_backward if training else 0
    return StageSeconds(
        forward_s=parts.forward_s + overhead + shared + gather,
        backward_s=runs * (parts.backward_s + overhead + shared_back + again + gather),
        all_reduce_s=_gradient_exchange_s(weights, gradients, setting) if training else 0.0 * parts.forward_s,
        optimizer_s=parts.optimizer_s / (setting.replicas if setting.zero >= 1 else 1),
    )


def tied_all_reduce_s(problem: Problem, shared_bytes: Number, holders: int, tensor: int, route: Route | None) -> Number:
    """Seconds in which the stages that hold a copy of tied parameters sum their gradients."""
    if problem.training is None:
        return 0.0 * shared_bytes
    size = problem.training.gradient_bytes_per_parameter / dtype_bytes(problem)
    return ring_all_reduce_s(shared_bytes * size / tensor, holders, route)


def dtype_bytes(problem: Problem) -> int:
    """Bytes of one parameter in `Layer.parameter_bytes` (all profiles of a problem have one dtype)."""
    return DTYPE_BYTES[problem.profiles[0].dtype]


def _synchronised_bytes(problem: Problem, parts: StageParts, setting: StageSetting) -> tuple[Number, Number]:
    """Whole weights and gradients of one replica's device, before any ZeRO division."""
    whole = memory_bytes(
        parts,
        problem.workload,
        dtype=problem.profile_of[setting.device_type].dtype,
        tensor=setting.tensor,
        replicas=1,
        sharers=setting.sharers,
        zero=0,
        recomputation=setting.recomputation,
        in_flight=0,
    )
    return whole["weights_bytes"], whole["gradients_bytes"]


def _gradient_exchange_s(weights: Number, gradients: Number, setting: StageSetting) -> Number:
    """All-reduce of gradients; under ZeRO reduce-scatter of gradients and (stages 1, 2) all-gather of weights."""
    n, route = setting.replicas, setting.replica_route
    if setting.zero == 0:
        return ring_all_reduce_s(gradients, n, route)
    scattered = ring_gather_s(gradients, n, route)
    return scattered if setting.zero >= 3 else scattered + ring_gather_s(weights, n, route)
