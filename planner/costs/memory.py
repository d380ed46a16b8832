"""Memory of one device of a stage, part by part. `docs/cost-model.md` section 5."""

from __future__ import annotations

from fractions import Fraction
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
) -> dict[str, Number]:
    """Bytes by purpose, keyed like `MemoryParts` without total and limit.

    `replicas` is the data-parallel degree that ZeRO divides by, `sharers` the number of replicas that split one
    microbatch, `in_flight` the microbatches whose activations are held. ZeRO stage 1 divides the optimizer state by
    the replicas, 2 also the gradients, 3 also the weights (Rajbhandari et al. 2020). Rounding is up.
    """
    held = _ceil_div(parts.parameter_bytes - parts.replicated_bytes, tensor) + parts.replicated_bytes
    trained = (
        _ceil_div(parts.trainable_bytes - parts.trainable_replicated_bytes, tensor) + parts.trainable_replicated_bytes
    )
    size = DTYPE_BYTES[dtype]
    kept, transient = _activations(parts, workload, recomputation, tensor, sharers, in_flight)
    share = tensor * sharers
    bpp = _bytes_per_parameter(workload)
    return {
        "weights_bytes": _scaled(held, bpp[0], size, replicas if zero >= 3 else 1),
        "gradients_bytes": _scaled(trained, bpp[1], size, replicas if zero >= 2 else 1),
        "optimizer_bytes": _scaled(trained, bpp[2], size, replicas if zero >= 1 else 1),
        "activations_bytes": kept + transient,
        "workspace_bytes": parts.workspace_bytes,
        "buffers_bytes": _ceil_div(parts.receive_bytes, share) + _buffered_gradients(parts, workload, share),
    }


def total_bytes(parts: dict[str, Number]) -> Number:
    """The sum of all purposes."""
    return sum(parts.values())


def kept_bytes_per_microbatch(
    parts: StageParts, workload: Training | Inference, recomputation: Recomputation, tensor: int, sharers: int
) -> Number:
    """What one microbatch in flight holds from its forward to its backward pass."""
    if not isinstance(workload, Training):
        return 0 * parts.activation_bytes
    if recomputation is Recomputation.FULL:
        return _ceil_div(parts.kept_input_bytes, tensor * sharers)
    return parts.activation_bytes


def _activations(
    parts: StageParts,
    workload: Training | Inference,
    recomputation: Recomputation,
    tensor: int,
    sharers: int,
    in_flight: Number,
) -> tuple[Number, Number]:
    """Kept bytes of all microbatches in flight, and what recomputing one layer needs besides."""
    kept = in_flight * kept_bytes_per_microbatch(parts, workload, recomputation, tensor, sharers)
    again = recomputation is Recomputation.FULL and isinstance(workload, Training)
    return kept, (parts.largest_activation_bytes if again else 0)


def _buffered_gradients(parts: StageParts, workload: Training | Inference, share: int) -> Number:
    return _ceil_div(parts.receive_gradient_bytes, share) if isinstance(workload, Training) else 0


def _bytes_per_parameter(workload: Training | Inference) -> tuple[Fraction, Fraction, Fraction]:
    values = [workload.weight_bytes_per_parameter, 0.0, 0.0]
    if isinstance(workload, Training):
        values[1:] = [workload.gradient_bytes_per_parameter, workload.optimizer_bytes_per_parameter]
    weights, gradients, optimizer = (Fraction(v).limit_denominator(MAX_DENOMINATOR) for v in values)
    return weights, gradients, optimizer


def _scaled(parameter_bytes: Number, per_parameter: Fraction, itemsize: int, divide: int) -> Number:
    """Bytes of `parameter_bytes / itemsize` parameters at `per_parameter` bytes each, divided by the group."""
    return _ceil_div(parameter_bytes * per_parameter.numerator, itemsize * per_parameter.denominator * divide)


def _ceil_div(a: Any, b: int) -> Any:
    """Rounded up, for ints and integer arrays."""
    return -(-a // b)
