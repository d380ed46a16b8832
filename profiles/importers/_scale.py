"""How transfer times become bytes over a bus, so that bytes / bandwidth gives the times back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.checks import MAX_BYTES
from planner.errors import InputError

DEFAULT_BYTES_PER_MS = 2.0**31
"""Start where sizes tell nothing: most files of the repository divide sizes by 2^31."""
TOLERANCE = 1e-9
"""Largest relative error of a time that is read back."""
MAX_DOUBLINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class BusScale:
    """Bytes per millisecond of the bus, and how many bytes of ours stand for one of the file's (None: unrelated)."""

    bytes_per_ms: float
    bytes_per_size: float | None

    def bytes_of(self, cost_ms: float) -> int:
        """Whole bytes whose transfer takes `cost_ms`."""
        return round(cost_ms * self.bytes_per_ms)

    @property
    def note(self) -> str:
        """What a reader of the profile must know about its bytes."""
        if self.bytes_per_size == 1:
            return "tensor bytes are the sizes of the file"
        if self.bytes_per_size is not None:
            return f"tensor bytes are the sizes of the file times {self.bytes_per_size:g}, so that they are whole"
        return (
            "tensor bytes are transfer times times the bandwidth of the bus: the sizes of the file do not fit its times"
        )


def bus_scale(costs_ms: Sequence[float], sizes: Sequence[float]) -> BusScale:
    """The scale that reproduces every time to 1e-9; by the file's own sizes where cost / size is one constant.

    The scale is doubled until all bytes are whole numbers (sizes of 1/8 byte exist). InputError when no scale does it.
    """
    rate = _constant_rate(costs_ms, sizes)
    start = rate or DEFAULT_BYTES_PER_MS
    for doublings in range(MAX_DOUBLINGS):
        bytes_per_ms = start * 2.0**doublings
        if all(_whole(cost * bytes_per_ms) for cost in costs_ms):
            return BusScale(bytes_per_ms=bytes_per_ms, bytes_per_size=2.0**doublings if rate else None)
    raise InputError("the transfer times differ too much: no bandwidth makes all of them whole bytes", pointer="/edges")


def _constant_rate(costs_ms: Sequence[float], sizes: Sequence[float]) -> float | None:
    """Bytes per millisecond, when every size fits to its time."""
    rates = [size / cost for cost, size in zip(costs_ms, sizes, strict=True) if cost > 0]
    fits = all((size > 0) == (cost > 0) for cost, size in zip(costs_ms, sizes, strict=True))
    if not rates or not fits or max(rates) - min(rates) > TOLERANCE * max(rates):
        return None
    return rates[0] if math.isfinite(rates[0]) else None


def _whole(value: float) -> bool:
    return value <= MAX_BYTES and abs(value - round(value)) <= TOLERANCE * value
