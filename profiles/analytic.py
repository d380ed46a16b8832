"""Roofline costs: a record's FLOPs and bytes as seconds on a device that is not at hand.

Kernels of a layer run one after another, each limited by arithmetic or by memory:

    seconds = max(matmul FLOPs / achieved FLOP rate, weight bytes / memory rate) + other bytes / memory rate

The first term is the operators with FLOPs (products, convolutions, attention), the last one all others (norms,
activations, additions), which do next to no arithmetic. With tensor degree t every term is divided by t (sequence
parallelism divides the other operators too); the collectives between are priced by `planner.costs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cluster import DeviceKind, DeviceType
from planner.errors import InputError
from planner.graph import Layer
from planner.profile import DTYPE_BYTES, CostTable, LayerCost, Profile, Provenance
from profiles.model import LayerWork, ModelRecord

MATMUL_EFFICIENCY = 0.65
"""Share of the dense peak that the products of a big layer reach.

The best single products reach about 80 % (H100) to 87 % (A100) of the data sheet's figure, power-limited; the mixed
shapes of real layers and fused attention stay below. Whole training runs report 38 to 55 % with communication,
bubbles and the other operators, which are priced apart here. An assumption of ours, not measured.
"""
SATURATION_S = 40e-6
"""Time at full rate that one pass of a layer loses to small kernels (launches, partly filled waves): about ten kernels
of 4 us each. As a law: efficiency = best * work / (work + half), where half is the work of this time."""
MEMORY_EFFICIENCY = 0.80
"""Share of the nominal memory bandwidth that streaming kernels reach (STREAM-like copies: 80 to 90 %)."""
BACKWARD_WEIGHT_PASSES = 3
"""Weight traffic of a backward pass in units of the weights: read them, read and write their accumulated gradient."""
OPTIMIZER_BYTES_PER_PARAMETER = 30
"""AdamW with float32 state: reads gradient 4, master 4, moments 8; writes master 4, moments 8, weight 2 (Rajbhandari
et al. 2020, section 3.1, for the state; float32 training moves 28)."""
ACTION_OVERHEAD_S = 50e-6
"""Per forward or backward of a stage on an accelerator: point-to-point launches and stream synchronisation. Kernels are
queued ahead, so that Python's time is hidden. An assumption, not measured."""
CPU_ACTION_OVERHEAD_S = 0.15e-3
"""The same for torch's single-stage schedules with gloo: thread CPU seconds per action outside the model.

Read off traces of 2-process runs on torch 2.13 (0.10 to 0.15 ms in the main thread and gloo's threads on its core)."""
SAME_SIZE = {"bfloat16": "float16", "float16": "bfloat16"}


def price(
    record: ModelRecord,
    device_type: DeviceType,
    *,
    microbatch_sizes: Sequence[int],
    tensor: int | Sequence[int] = 1,
    dtype: str | None = None,
) -> Profile:
    """The record's costs on `device_type`, one table per tensor degree and microbatch size.

    `dtype` is what the products are computed in (default: the record's; on devices without bfloat16, float16). Bytes
    stay those of the record: convert it with `profiles.records.in_dtype` to train in another one. InputError when the
    device type has no figures for it.
    """
    degrees = [tensor] if isinstance(tensor, int) else list(tensor)
    _check(microbatch_sizes, degrees)
    computed_in = _compute_dtype(record, device_type, dtype)
    rates = _Rates(device_type, computed_in)
    return Profile(
        device_type=device_type.name,
        dtype=record.dtype,
        tables=tuple(
            _table(record, rates, size, degree)
            for degree in sorted(set(degrees))
            for size in sorted(set(microbatch_sizes))
        ),
        action_overhead_s=_action_overhead_s(device_type),
        provenance=_provenance(record, computed_in),
    )


def _action_overhead_s(device_type: DeviceType) -> float:
    return CPU_ACTION_OVERHEAD_S if device_type.kind is DeviceKind.CPU else ACTION_OVERHEAD_S


class _Rates:
    """Achievable rates of a device type in one dtype."""

    def __init__(self, device_type: DeviceType, dtype: str) -> None:
        assert device_type.peak_flops_per_s is not None
        assert device_type.memory_bandwidth_bytes_per_s is not None
        self.flops_per_s = device_type.peak_flops_per_s[dtype] * MATMUL_EFFICIENCY
        self.bytes_per_s = device_type.memory_bandwidth_bytes_per_s * MEMORY_EFFICIENCY
        self.half_work = self.flops_per_s * SATURATION_S

    def seconds(self, flops: float, weight_bytes: float, other_bytes: float) -> float:
        """The roofline of the module's docstring, with saturating efficiency."""
        return max(self.matmul_s(flops), weight_bytes / self.bytes_per_s) + other_bytes / self.bytes_per_s

    def matmul_s(self, flops: float) -> float:
        """Seconds of `flops` at best rate * flops / (flops + half work)."""
        return (flops + self.half_work) / self.flops_per_s if flops else 0.0


def _table(record: ModelRecord, rates: _Rates, size: int, tensor: int) -> CostTable:
    itemsize = DTYPE_BYTES[record.dtype]
    return CostTable(
        microbatch_size=size,
        tensor=tensor,
        sequence_length=record.sequence_length,
        layers={
            layer.id: _cost(record.work[layer.id], layer, rates, size, tensor, itemsize, record.sequence_length)
            for layer in record.graph.layers
        },
    )


def _weight_flops(work: LayerWork, layer: Layer, tokens: int, parameter_bytes: int) -> float:
    """FLOPs per sample of the weight gradient: 2 per parameter and token, at most those of the forward pass.

    The least of the two where not every token meets every parameter (experts) or parameters are looked up (embeddings).
    """
    return min(work.forward_flops, 2.0 * tokens * layer.parameter_bytes / parameter_bytes) if layer.trainable else 0.0


def _cost(
    work: LayerWork, layer: Layer, rates: _Rates, size: int, tensor: int, parameter_bytes: int, tokens: int | None
) -> LayerCost:
    """One layer on one member of a tensor-parallel group. Layers without FLOPs (embeddings) read no whole weight.

    Without a number of tokens per sample the backward pass is not split.
    """
    share = size / tensor
    weights = work.weight_bytes / tensor
    parameters = layer.replicated_parameter_bytes + (layer.parameter_bytes - layer.replicated_parameter_bytes) / tensor
    backward_s = rates.seconds(
        work.backward_flops * share, BACKWARD_WEIGHT_PASSES * weights, work.backward_moved_bytes * share
    )
    weight_s = (
        None if tokens is None else _weight_flops(work, layer, tokens, parameter_bytes) * share / rates.flops_per_s
    )
    return LayerCost(
        forward_s=rates.seconds(
            work.forward_flops * share, weights if work.forward_flops else 0.0, work.forward_moved_bytes * share
        ),
        backward_s=backward_s,
        backward_input_s=None if weight_s is None else max(0.0, backward_s - weight_s),
        backward_weight_s=None if weight_s is None else min(weight_s, backward_s),
        activation_bytes=-(-work.activation_bytes * size // tensor),
        selective_activation_bytes=_member_bytes(work.selective_activation_bytes, size, tensor),
        selective_recompute_s=rates.seconds(work.selective_flops * share, 0.0, work.selective_moved_bytes * share),
        sequence_activation_bytes=-(-work.sequence_activation_bytes * size // tensor),
        workspace_bytes=-(-(work.workspace_bytes * size + work.gradient_workspace_bytes) // tensor),
        optimizer_s=parameters / parameter_bytes * OPTIMIZER_BYTES_PER_PARAMETER / rates.bytes_per_s,
        weight_pass_bytes=_member_bytes(work.weight_pass_bytes, size, tensor),
    )


def _member_bytes(per_sample: int | None, size: int, tensor: int) -> int | None:
    """Of one member of a tensor-parallel group; None stays unknown."""
    return None if per_sample is None else -(-per_sample * size // tensor)


def _check(microbatch_sizes: Sequence[int], degrees: Sequence[int]) -> None:
    for what, values in (("microbatch size", microbatch_sizes), ("tensor degree", degrees)):
        if not values:
            raise InputError(f"no {what} is given: price at least one")
        if min(values) < 1:
            raise InputError(f"{what} is {min(values)}: it must be at least 1")


def _compute_dtype(record: ModelRecord, device_type: DeviceType, dtype: str | None) -> str:
    peaks = device_type.peak_flops_per_s
    if not peaks or not device_type.memory_bandwidth_bytes_per_s:
        raise InputError(
            f"device type {device_type.name!r} has no peak_flops_per_s or no memory_bandwidth_bytes_per_s: give both "
            "to price a model for it, or bring a measured profile"
        )
    if dtype is None:
        dtype = record.dtype if record.dtype in peaks else SAME_SIZE.get(record.dtype, record.dtype)
    if dtype not in peaks:
        raise InputError(
            f"device type {device_type.name!r} has no peak for dtype {dtype!r}: use one of {', '.join(sorted(peaks))}"
        )
    return dtype


def _provenance(record: ModelRecord, dtype: str) -> Provenance:
    return Provenance(
        method=(
            f"analytic: roofline in {dtype}, {MATMUL_EFFICIENCY:.0%} of peak for products, {MEMORY_EFFICIENCY:.0%} of "
            "memory bandwidth for the rest; not measured"
        ),
        tool=record.provenance.tool,
        created=record.provenance.created,
        notes=(f"work: {record.name}, {record.provenance.method}", *record.provenance.notes),
    )
