"""Compute: what each layer costs at a microbatch size and tensor degree on one type of device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from planner.errors import InputError
from planner.graph import Layer
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile

UNSUPPORTED_S = 1e30
"""Forward seconds of a layer that a device type cannot run: finite, so that no sum or product becomes NaN."""

CANNOT_RUN_S = 1e20
"""A stage whose passes take at least this long holds a layer that its devices cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPrices:
    """Per layer position: seconds and bytes of one microbatch on one member of the device group.

    `forward_s` is `UNSUPPORTED_S` for a layer that the device type cannot run. `backward_input_s` and
    `backward_weight_s` are the parts of a split backward pass (`_split`). `selective_*` are the bytes kept and the
    seconds added under selective recomputation, `weight_pass_bytes` what I adds until W (0: not known);
    `expert_optimizer_s` is the experts' part of `optimizer_s`, by their share of the layer's parameters. Lists are in
    graph order.
    """

    forward_s: list[float]
    backward_s: list[float]
    backward_input_s: list[float]
    backward_weight_s: list[float]
    optimizer_s: list[float]
    activation_bytes: list[int]
    workspace_bytes: list[int]
    selective_bytes: list[int]
    selective_s: list[float]
    expert_optimizer_s: list[float]
    weight_pass_bytes: list[int]


def layer_prices(problem: Problem, device_type: str, samples: float, tensor: int) -> LayerPrices:
    """Prices of all layers for `samples` samples per pass.

    Between measured microbatch sizes every figure is affine; outside them the nearest two measured sizes are
    extended, and a single measured size scales in proportion. `visits` multiplies. A layer without anything
    trainable at or before it has no backward pass and keeps nothing; inference keeps nothing at all.
    """
    profile = problem.profile_of[device_type]
    tables, divide = _tables_for(profile, tensor, problem.workload.sequence_length)
    index = problem.index
    rows = _rows(tables, [layer.id for layer in index.layers], samples)
    backward = [flag and problem.training is not None for flag in index.runs_backward]
    visits = [layer.visits for layer in index.layers]
    whole = tensor // divide if _keeps_whole(problem) else None
    backward_s = [
        _backward_seconds(r, layer) * layer.visits / divide if runs else 0.0
        for r, layer, runs in zip(rows, index.layers, backward, strict=True)
    ]
    split = [
        _split(r, layer, layer.visits / divide, b) for r, layer, b in zip(rows, index.layers, backward_s, strict=True)
    ]
    optimizer_s = [
        r.optimizer_s / divide if problem.training and layer.trainable else 0.0
        for r, layer in zip(rows, index.layers, strict=True)
    ]
    return LayerPrices(
        forward_s=[r.forward_s * v / divide for r, v in zip(rows, visits, strict=True)],
        backward_s=backward_s,
        backward_input_s=[input_s for input_s, _ in split],
        backward_weight_s=[weight_s for _, weight_s in split],
        optimizer_s=optimizer_s,
        activation_bytes=[
            _kept(r.activation_bytes, r, v, divide, whole) if runs else 0
            for r, v, runs in zip(rows, visits, backward, strict=True)
        ],
        workspace_bytes=[math.ceil(r.workspace_bytes / divide) for r in rows],
        selective_bytes=[
            _kept(r.selective_bytes, r, v, divide, whole) if runs else 0
            for r, v, runs in zip(rows, visits, backward, strict=True)
        ],
        selective_s=[
            r.selective_s * v / divide if runs else 0.0 for r, v, runs in zip(rows, visits, backward, strict=True)
        ],
        expert_optimizer_s=[
            seconds * layer.expert_parameter_bytes / max(1, layer.parameter_bytes)
            for seconds, layer in zip(optimizer_s, index.layers, strict=True)
        ],
        weight_pass_bytes=[
            math.ceil(r.weight_pass_bytes * layer.visits / divide) if runs and layer.trainable else 0
            for r, layer, runs in zip(rows, index.layers, backward, strict=True)
        ],
    )


def _keeps_whole(problem: Problem) -> bool:
    """Whether what lies between the products is kept whole by every member of a tensor-parallel group."""
    return problem.training is not None and not problem.training.sequence_parallel


def _kept(num_bytes: float, row: _Row, visits: float, divide: int, whole: int | None) -> int:
    """Kept bytes of one member. `whole` is the tensor degree of the table where sequence parallelism is off.

    Then the sequence part is that of all members together: the table's, times its degree.
    """
    if whole is None:
        return math.ceil(num_bytes * visits / divide)
    divided = (num_bytes - row.sequence_bytes) / divide
    return math.ceil((divided + row.sequence_bytes * whole) * visits)


class _Row(NamedTuple):
    forward_s: float
    backward_s: float
    backward_input_s: float | None
    backward_weight_s: float | None
    optimizer_s: float
    activation_bytes: float
    workspace_bytes: float
    selective_bytes: float
    selective_s: float
    sequence_bytes: float
    weight_pass_bytes: float


_UNSUPPORTED = _Row(
    forward_s=UNSUPPORTED_S,
    backward_s=0.0,
    backward_input_s=None,
    backward_weight_s=None,
    optimizer_s=0.0,
    activation_bytes=0,
    workspace_bytes=0,
    selective_bytes=0,
    selective_s=0.0,
    sequence_bytes=0,
    weight_pass_bytes=0,
)


def _tables_for(profile: Profile, tensor: int, sequence_length: int | None) -> tuple[list[CostTable], int]:
    """The tables to read, by microbatch size, and the degree that their figures still have to be divided by."""
    lengths = {table.sequence_length for table in profile.tables}
    if sequence_length is None and len(lengths) > 1:
        known = ", ".join(str(length) for length in sorted(lengths, key=lambda length: length or 0))
        raise InputError(
            f"the profile for {profile.device_type!r} holds several sequence lengths ({known}): give sequence_length",
            pointer="/workload/sequence_length",
        )
    fitting = [t for t in profile.tables if sequence_length is None or t.sequence_length in (None, sequence_length)]
    if not fitting:
        raise InputError(
            f"the profile for {profile.device_type!r} has no costs at sequence length {sequence_length} "
            f"(it has {', '.join(map(str, sorted(x for x in lengths if x)))}): profile the model at that length",
            pointer="/workload/sequence_length",
        )
    for degree in (tensor, 1):
        tables = sorted((t for t in fitting if t.tensor == degree), key=lambda t: t.microbatch_size)
        if tables:
            return tables, tensor // degree
    raise InputError(
        f"the profile for {profile.device_type!r} has no costs at tensor degree {tensor} nor at 1: profile it",
        pointer="/workload/tensor",
    )


def _rows(tables: list[CostTable], layers: list[str], samples: float) -> list[_Row]:
    """The row of every layer. Which tables to read is the same for all layers that every table has."""
    everywhere = set(tables[0].layers).intersection(*(table.layers for table in tables[1:]))
    between = _between(tables, samples)
    return [
        _row(between if name in everywhere else _between([t for t in tables if name in t.layers], samples), name)
        for name in layers
    ]


_Between = tuple[CostTable, CostTable, float, float]
"""Two tables, the weight of the second, and by what the mixture is multiplied."""


def _between(tables: list[CostTable], samples: float) -> _Between | None:
    """Which of these tables, in order of their microbatch size, to read; None where there are none."""
    if not tables:
        return None
    if len(tables) == 1:
        return tables[0], tables[0], 0.0, samples / tables[0].microbatch_size
    upper = next((i for i, t in enumerate(tables) if t.microbatch_size >= samples), len(tables) - 1) or 1
    low, high = tables[upper - 1], tables[upper]
    weight = (samples - low.microbatch_size) / (high.microbatch_size - low.microbatch_size)
    return low, high, weight, 1.0


def _row(between: _Between | None, layer: str) -> _Row:
    if between is None:
        return _UNSUPPORTED
    low, high, weight, share = between
    return _mix(low.layers[layer], high.layers[layer], weight, share)


def _mix(a: LayerCost, b: LayerCost, weight: float, share: float) -> _Row:
    """`a` + weight * (`b` - `a`), times `share`, never below zero (optimizer time does not depend on the samples)."""

    def affine(x: float, y: float) -> float:
        value = x + weight * (y - x)
        return value * share if value > 0.0 else 0.0

    def measured(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else affine(x, y)

    activation, forward = affine(a.activation_bytes, b.activation_bytes), affine(a.forward_s, b.forward_s)
    selective = min(activation, affine(selective_kept_bytes(a), selective_kept_bytes(b)))
    return _Row(
        forward_s=forward,
        backward_s=affine(a.backward_s, b.backward_s),
        backward_input_s=measured(a.backward_input_s, b.backward_input_s),
        backward_weight_s=measured(a.backward_weight_s, b.backward_weight_s),
        optimizer_s=max(a.optimizer_s, b.optimizer_s),
        activation_bytes=activation,
        workspace_bytes=affine(a.workspace_bytes, b.workspace_bytes),
        selective_bytes=selective,
        selective_s=min(forward, affine(a.selective_recompute_s, b.selective_recompute_s)),
        sequence_bytes=min(selective, affine(a.sequence_activation_bytes, b.sequence_activation_bytes)),
        weight_pass_bytes=measured(a.weight_pass_bytes, b.weight_pass_bytes) or 0.0,
    )


def selective_kept_bytes(cost: LayerCost) -> int:
    """Kept under selective recomputation: everything where it is not offered."""
    return cost.activation_bytes if cost.selective_activation_bytes is None else cost.selective_activation_bytes


def _backward_seconds(row: _Row, layer: Layer) -> float:
    """A frozen layer computes only the gradient of its input."""
    if layer.trainable or row.backward_input_s is None:
        return row.backward_s
    return row.backward_input_s


def _split(row: _Row, layer: Layer, scale: float, whole_s: float) -> tuple[float, float]:
    """Seconds of I and W, of a layer whose unsplit backward takes `whole_s`; `scale` is visits over divisor.

    Nothing to train: all in I. Measured parts count, but together at least the whole (measured splits take 6 to 9 %
    more); one part missing: the rest of the whole. Nothing measured: half of the whole each.
    """
    if not whole_s or not layer.trainable or not layer.parameter_bytes:
        return whole_s, 0.0
    known_input, known_weight = row.backward_input_s, row.backward_weight_s
    if known_input is not None:
        input_s = known_input * scale
        return input_s, max(0.0, whole_s - input_s, (known_weight or 0.0) * scale)
    weight_s = whole_s / 2 if known_weight is None else known_weight * scale
    return max(0.0, whole_s - weight_s), weight_s
