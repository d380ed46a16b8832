"""A fixed workload that runs between the chains: what changes its time is the host, not the model."""

from __future__ import annotations

import torch

from profiles.measuring.stopwatch import Stopwatch

WIDTH = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of each weight: larger than the caches of a core, so that memory and neighbours count too."""
ROWS = {"cpu": 64, "cuda": 2048}
"""Rows of the input: some 8 ms forward and backward on one core of today."""


class ReferenceWorkload:
    """Forward and backward pass of two linear layers with a GELU between them, in float32, gradients accumulating.

    It is made like the layers of models (products with weights that lie in no cache), because a fixed product that fits
    the caches did not see what slowed models by 4 %. Its seconds stand in the profile: two profiles with other layer
    times but equal reference times differ by something else than the host's speed.
    """

    def __init__(self, device: torch.device, stopwatch: Stopwatch) -> None:
        width, rows = (sizes.get(device.type, sizes["cpu"]) for sizes in (WIDTH, ROWS))
        self._stopwatch = stopwatch
        self._weights = [torch.full((width, width), 1 / width, device=device, requires_grad=True) for _ in range(2)]
        self._input = torch.full((rows, width), 0.5, device=device)
        self.marks: list[tuple[object, object]] = []

    def run(self) -> None:
        """Once; remembers how long it took."""
        start = self._stopwatch.mark()
        first, second = self._weights
        inner = torch.nn.functional.gelu(self._input @ first)
        torch.autograd.backward((inner @ second).mean())
        self.marks.append((start, self._stopwatch.mark()))

    @property
    def seconds(self) -> list[float]:
        """Of every run so far."""
        return [self._stopwatch.seconds(start, end) for start, end in self.marks]
