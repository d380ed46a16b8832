"""Bytes of a pass, as the allocator sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBytes:
    """Of one pass."""

    net: int
    peak: int
