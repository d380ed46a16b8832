"""Lists of numbers, one per ideal, held as slices of one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Lists:
    """A list of numbers per ideal, each with a value, as slices of arrays."""

    def __init__(self, size: int, owners: Array, numbers: Array, values: Array | None = None) -> None:
        order = np.argsort(owners, kind="stable")
        self._numbers = numbers[order]
        self._values = values[order] if values is not None else np.zeros(0)
        self._ends = np.searchsorted(owners[order], np.arange(size + 1)).tolist()

    def of(self, i: int) -> Array:
        """The numbers of ideal i."""
        found: Array = self._numbers[self._ends[i] : self._ends[i + 1]]
        return found

    def values_of(self, i: int) -> Array:
        """Their values."""
        found: Array = self._values[self._ends[i] : self._ends[i + 1]]
        return found


def chained(parts: Sequence[Array]) -> Array:
    """All parts one after the other; empty without parts."""
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
