"""Sizes and rates as people write them: `80GiB`, `3.35TB/s`, `100Gbit/s`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from planner.errors import InputError

_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
UNITS = {f"{name}B": factor for name, factor in (_PREFIXES | _BINARY).items()}
"""Unit -> bytes: decimal kB, MB, GB, TB; binary KiB, MiB, GiB, TiB."""
RATES = {f"{unit}/s": float(factor) for unit, factor in UNITS.items()} | {
    f"{name}bit/s": factor / 8 for name, factor in _PREFIXES.items()
}
"""Unit -> bytes per second; bits are divided by eight."""
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z/]+)\s*", re.ASCII)
MAX_TEXT_LENGTH = 64


def parse_bytes(text: str) -> int:
    """`text` as whole bytes, rounded down; InputError for anything but a number and a unit."""
    return int(_parse(text, UNITS, "size", "80GiB"))


def parse_rate(text: str) -> float:
    """`text` as bytes per second; InputError for anything but a number and a unit."""
    return _parse(text, RATES, "rate", "25GB/s or 200Gbit/s")


def plain(values: Any) -> Any:
    """`values` with every text under a key that ends in `_bytes` or `_bytes_per_s` turned into its number."""
    if isinstance(values, list):
        return [plain(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {key: _number(key, value) for key, value in values.items()}


def _number(key: str, value: Any) -> Any:
    if isinstance(value, str) and key.endswith("_bytes"):
        return parse_bytes(value)
    if isinstance(value, str) and key.endswith("_bytes_per_s"):
        return parse_rate(value)
    return plain(value)


def _parse(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_TEXT_LENGTH else None
    if match is None or match[2] not in units:
        raise InputError(
            f"{text[:MAX_TEXT_LENGTH]!r} is no {what}: write a number and one of {', '.join(units)}, as in {example}"
        )
    value = float(match[1]) * units[match[2]]
    if not math.isfinite(value):
        raise InputError(f"{text!r} is too large a {what}: give a finite number")
    return value
