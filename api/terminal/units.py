"""Quantities as people read them."""

from __future__ import annotations

import math

GIBIBYTE = 2**30
MEBIBYTE = 2**20
MAX_DECIMALS = 4


def seconds(value: float) -> str:
    """Four digits with the unit that fits: `12.34 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{digits(value / size)} {unit}"
    return f"{digits(value / 1e-6)} us"


def milliseconds(value: float) -> str:
    """The number of milliseconds alone, for columns that say the unit."""
    return digits(value * 1e3)


def gibibytes(value: float) -> str:
    """The number of GiB alone; three decimals below one, so that small models are not shown as zero."""
    gib = value / GIBIBYTE
    return f"{gib:.3f}" if abs(gib) < 1 else f"{gib:.2f}"


def memory(value: float) -> str:
    """With its unit: GiB, or MiB below one."""
    if abs(value) >= GIBIBYTE:
        return f"{value / GIBIBYTE:.2f} GiB"
    return f"{value / MEBIBYTE:.1f} MiB"


def percent(share: float) -> str:
    """A share as a percentage: two decimals below one percent, where certificates live, else one."""
    value = 100 * share
    return f"{value:.2f} %" if 0 < abs(value) < 1 else f"{value:.1f} %"


def digits(value: float, count: int = 4) -> str:
    """`count` significant digits without an exponent, at most four decimals."""
    if not value:
        return "0"
    decimals = count - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:,.{min(MAX_DECIMALS, max(0, decimals))}f}"
    return text if text.strip("-0.") else "<0.0001"
