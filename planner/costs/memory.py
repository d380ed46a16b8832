"""Memory of one device of a stage, part by part. `docs/cost-model.md` section 5."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from planner.costs.parts import Number, StageParts
from planner.profile import DTYPE_BYTES
from planner.workload import Inference, Recomputation, Training

MAX_DENOMINATOR = 64
"""Bytes per parameter are read as fractions with at most this denominator (4-bit weights: 1/2)."""


def memory_bytes(
    parts: StageParts,
    workload: Training | Inference,
    *,
    dtype: str,
    tensor: int,
    replicas: int,
    sharers: int,
    zero: int,
    recomputation: Recomputation,
    in_flight: Number,
    context: int = 1,
    expert: int = 1,
    reshard: bool = True,
) -> dict[str, Number]:
    """Bytes by purpose, keyed like `MemoryParts` without total and limit.

    `sharers` is the number of replicas that split one microbatch, `in_flight` the microbatches whose activations are
    held. The data-parallel group of the weights has `replicas * context` members; experts' weights are divided by
    `expert` and replicated over the rest. ZeRO stage 1 divides the optimizer state by the group, 2 also the gradients,
    3 with `reshard` also the weights (Rajbhandari et al. 2020), of which the running layer's are gathered in a buffer.
    Rounding is up.
    """
    held = _Parameters.of(parts.parameter_bytes, parts.replicated_bytes, parts.expert_bytes, tensor, expert)
    trained = _Parameters.of(
        parts.trainable_bytes, parts.trainable_replicated_bytes, parts.trainable_expert_bytes, tensor, expert
    )
    scale = _Scale(DTYPE_BYTES[dtype], replicas * context, expert)
    weights, gradients, optimizer = _bytes_per_parameter(workload)
    gathered = (
        _gathered(parts, tensor, expert) if zero >= 3 and reshard and replicas * context > 1 else _Parameters(0, 0)
    )
    kept = in_flight * kept_bytes_per_microbatch(parts, workload, recomputation, tensor, sharers, context)
    return {
        "weights_bytes": scale.bytes(held, weights, divided=zero >= 3 and reshard),
        "gradients_bytes": scale.bytes(trained, gradients, divided=zero >= 2),
        "optimizer_bytes": scale.bytes(trained, optimizer, divided=zero >= 1),
        "activations_bytes": kept + _recomputed_layer(parts, workload, recomputation),
        "workspace_bytes": parts.workspace_bytes + _recomputed_core(parts, workload, recomputation),
        "buffers_bytes": _buffers(parts, workload, _boundary_share(workload, tensor, sharers, context))
        + scale.bytes(gathered, weights, divided=False),
    }


def undivided_bytes(
    parts: StageParts, workload: Training | Inference, *, dtype: str, tensor: int, expert: int
) -> tuple[Number, Number]:
    """Weights and gradients of one device before ZeRO divides them: those of `memory_bytes` with one replica."""
    held = _Parameters.of(parts.parameter_bytes, parts.replicated_bytes, parts.expert_bytes, tensor, expert)
    trained = _Parameters.of(
        parts.trainable_bytes, parts.trainable_replicated_bytes, parts.trainable_expert_bytes, tensor, expert
    )
    scale = _Scale(DTYPE_BYTES[dtype], 1, expert)
    weights, gradients, _ = _bytes_per_parameter(workload)
    return scale.bytes(held, weights, divided=False), scale.bytes(trained, gradients, divided=False)


def total_bytes(parts: dict[str, Number]) -> Number:
    """The sum of all purposes."""
    return sum(parts.values())


def kept_bytes_per_microbatch(
    parts: StageParts,
    workload: Training | Inference,
    recomputation: Recomputation,
    tensor: int,
    sharers: int,
    context: int = 1,
) -> Number:
    """What one microbatch in flight holds from its forward to its backward pass."""
    if not isinstance(workload, Training):
        return 0 * parts.activation_bytes
    if recomputation is Recomputation.FULL:
        return ceil_div(parts.kept_input_bytes, _boundary_share(workload, tensor, sharers, context))
    return parts.selective_bytes if recomputation is Recomputation.SELECTIVE else parts.activation_bytes


def late_bytes_per_microbatch(
    parts: StageParts, workload: Training | Inference, recomputation: Recomputation, kept: Number
) -> Number:
    """What I adds to the `kept` bytes until W.

    Gradients that W needs and, under full recomputation, what I has computed again; selective recomputation brings back
    what W does not read.
    A stage that sends no gradient back does everything in W, where nothing is held.
    """
    if not isinstance(workload, Training):
        return 0 * parts.weight_pass_bytes
    again = parts.activation_bytes - kept if recomputation is Recomputation.FULL else 0
    return (parts.weight_pass_bytes + again * (again > 0)) * parts.sends_back


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Parameter bytes on one device, in the profile's dtype: those of every data-parallel member, and experts'."""

    dense: Number
    expert: Number

    @classmethod
    def of(cls, whole: Number, replicated: Number, experts: Number, tensor: int, expert: int) -> _Parameters:
        """What one member of the tensor-parallel and of the expert group holds."""
        if expert == 1:  # one kind of parameters: rounded once
            return cls(ceil_div(whole - replicated, tensor) + replicated, 0)
        return cls(ceil_div(whole - replicated - experts, tensor) + replicated, ceil_div(experts, tensor * expert))


def _gathered(parts: StageParts, tensor: int, expert: int) -> _Parameters:
    """The parameters of the largest layer, on one member."""
    both = parts.largest_dense_bytes + parts.largest_expert_bytes
    return _Parameters.of(both, 0, parts.largest_expert_bytes, tensor, expert)


@dataclass(frozen=True, slots=True)
class _Scale:
    """From parameter bytes to bytes of one purpose; `members` form the data-parallel group."""

    itemsize: int
    members: int
    expert: int

    def bytes(self, parameters: _Parameters, per_parameter: Fraction, *, divided: bool) -> Number:
        """At `per_parameter` bytes each, `divided` by the members that hold the same ones."""
        dense = self._scaled(parameters.dense, per_parameter, self.members if divided else 1)
        if self.expert == 1:
            return dense
        return dense + self._scaled(parameters.expert, per_parameter, self.members // self.expert if divided else 1)

    def _scaled(self, parameter_bytes: Number, per_parameter: Fraction, divide: int) -> Number:
        return ceil_div(parameter_bytes * per_parameter.numerator, self.itemsize * per_parameter.denominator * divide)


def _boundary_share(workload: Training | Inference, tensor: int, sharers: int, context: int) -> int:
    """Over how many devices a tensor between layers is spread. Without sequence parallelism it is whole in a group."""
    whole = isinstance(workload, Training) and not workload.sequence_parallel
    return sharers * context * (1 if whole else tensor)


def _recomputed_layer(parts: StageParts, workload: Training | Inference, recomputation: Recomputation) -> Number:
    """What recomputing one layer at a time needs besides the kept inputs."""
    again = recomputation is Recomputation.FULL and isinstance(workload, Training)
    return parts.largest_activation_bytes if again else 0


def _recomputed_core(parts: StageParts, workload: Training | Inference, recomputation: Recomputation) -> Number:
    """What recomputing one layer's attention core at a time brings back."""
    again = recomputation is Recomputation.SELECTIVE and isinstance(workload, Training)
    return parts.largest_selective_bytes if again else 0


def _buffers(parts: StageParts, workload: Training | Inference, share: int) -> Number:
    """One microbatch of received activations and, in training, one of received gradients."""
    received = ceil_div(parts.receive_bytes, share)
    return received + (ceil_div(parts.receive_gradient_bytes, share) if isinstance(workload, Training) else 0)


def _bytes_per_parameter(workload: Training | Inference) -> tuple[Fraction, Fraction, Fraction]:
    """Bytes of weights, gradients and optimizer state that the device holds per parameter."""
    values = [workload.weight_bytes_per_parameter, 0.0, 0.0]
    if isinstance(workload, Training):
        optimizer = 0.0 if workload.offload_optimizer else workload.optimizer_bytes_per_parameter
        values[1:] = [workload.gradient_bytes_per_parameter, optimizer]
    weights, gradients, optimizer_state = map(_fraction, values)
    return weights, gradients, optimizer_state


@lru_cache(maxsize=64)
def _fraction(num_bytes: float) -> Fraction:
    return Fraction(num_bytes).limit_denominator(MAX_DENOMINATOR)


def ceil_div(a: Any, b: int) -> Any:
    """Rounded up, for ints and integer arrays."""
    return -(-a // b)
