"""A fixed workload that runs between the chains: what changes its time is the host, not the model."""

from __future__ import annotations

import torch

from profiles.measuring.stopwatch import Stopwatch

PRODUCT_SIZE = {"cpu": 320, "cuda": 4096}
"""Rows and columns of the matrices: 1 to 2 ms on one core of today, or on a GPU in single precision."""
STREAM_BYTES = {"cpu": 2**23, "cuda": 2**30}
"""Bytes of the vector: larger than the core's own cache, so that memory counts too."""


class ReferenceWorkload:
    """One matrix product and one pass over a long vector, in float32.

    Its seconds stand in the profile: two profiles with other layer times but equal reference times differ by something
    else than the host's speed.
    """

    def __init__(self, device: torch.device, stopwatch: Stopwatch) -> None:
        size = PRODUCT_SIZE.get(device.type, PRODUCT_SIZE["cpu"])
        length = STREAM_BYTES.get(device.type, STREAM_BYTES["cpu"]) // 4
        self._stopwatch = stopwatch
        self._matrix = torch.full((size, size), 0.5, device=device)
        self._product = torch.empty_like(self._matrix)
        self._vector = torch.zeros(length, device=device)
        self.marks: list[tuple[object, object]] = []

    def run(self) -> None:
        """Once; remembers how long it took."""
        start = self._stopwatch.mark()
        with torch.no_grad():
            torch.mm(self._matrix, self._matrix, out=self._product)
            self._vector.add_(1.0)
        self.marks.append((start, self._stopwatch.mark()))

    @property
    def seconds(self) -> list[float]:
        """Of every run so far."""
        return [self._stopwatch.seconds(start, end) for start, end in self.marks]
