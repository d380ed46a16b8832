"""Compute: what each layer costs at a microbatch size and tensor degree on one type of device."""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    `forward_s` is `UNSUPPORTED_S` for a layer that the device type cannot run. Lists are in graph order.
    """

    forward_s: list[float]
    backward_s: list[float]
    optimizer_s: list[float]
    activation_bytes: list[int]
    workspace_bytes: list[int]


def layer_prices(problem: Problem, device_type: str, samples: float, tensor: int) -> LayerPrices:
    """Prices of all layers for `samples` samples per pass.

    Between measured microbatch sizes every figure is affine; outside them the nearest two measured sizes are
    extended, and a single measured size scales in proportion. `visits` multiplies. A layer without anything
    trainable at or before it has no backward pass and keeps nothing; inference keeps nothing at all.
    """
    profile = problem.profile_of[device_type]
    tables, divide = _tables_for(profile, tensor, problem.workload.sequence_length)
    index = problem.index
    rows = [_interpolate(tables, layer.id, samples) for layer in index.layers]
    backward = [flag and problem.training is not None for flag in index.runs_backward]
    visits = [layer.visits for layer in index.layers]
    return LayerPrices(
        forward_s=[r.forward_s * v / divide for r, v in zip(rows, visits, strict=True)],
        backward_s=[
            _backward_seconds(r, layer) * layer.visits / divide if runs else 0.0
            for r, layer, runs in zip(rows, index.layers, backward, strict=True)
        ],
        optimizer_s=[
            r.optimizer_s / divide if problem.training and layer.trainable else 0.0
            for r, layer in zip(rows, index.layers, strict=True)
        ],
        activation_bytes=[
            math.ceil(r.activation_bytes * v / divide) if runs else 0
            for r, v, runs in zip(rows, visits, backward, strict=True)
        ],
        workspace_bytes=[math.ceil(r.workspace_bytes / divide) for r in rows],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    forward_s: float
    backward_s: float
    backward_input_s: float | None
    optimizer_s: float
    activation_bytes: float
    workspace_bytes: float


_UNSUPPORTED = _Row(
    forward_s=UNSUPPORTED_S,
    backward_s=0.0,
    backward_input_s=None,
    optimizer_s=0.0,
    activation_bytes=0,
    workspace_bytes=0,
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


def _interpolate(tables: list[CostTable], layer: str, samples: float) -> _Row:
    known = [(table.microbatch_size, table.layers[layer]) for table in tables if layer in table.layers]
    if not known:
        return _UNSUPPORTED
    if len(known) == 1:
        size, cost = known[0]
        return _mix(cost, cost, 0.0, samples / size)
    upper = next((i for i, (size, _) in enumerate(known) if size >= samples), len(known) - 1) or 1
    (low, a), (high, b) = known[upper - 1], known[upper]
    return _mix(a, b, (samples - low) / (high - low), 1.0)


def _mix(a: LayerCost, b: LayerCost, weight: float, share: float) -> _Row:
    """`a` + weight * (`b` - `a`), times `share`, never below zero (optimizer time does not depend on the samples)."""

    def affine(x: float, y: float) -> float:
        return max(0.0, x + weight * (y - x)) * share

    split = a.backward_input_s is not None and b.backward_input_s is not None
    return _Row(
        forward_s=affine(a.forward_s, b.forward_s),
        backward_s=affine(a.backward_s, b.backward_s),
        backward_input_s=affine(a.backward_input_s or 0.0, b.backward_input_s or 0.0) if split else None,
        optimizer_s=max(a.optimizer_s, b.optimizer_s),
        activation_bytes=affine(a.activation_bytes, b.activation_bytes),
        workspace_bytes=affine(a.workspace_bytes, b.workspace_bytes),
    )


def _backward_seconds(row: _Row, layer: Layer) -> float:
    """A frozen layer computes only the gradient of its input."""
    if layer.trainable or row.backward_input_s is None:
        return row.backward_s
    return row.backward_input_s
