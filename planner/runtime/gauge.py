"""How fast the machine is right now: CPU seconds of a fixed piece of work, small beside a step, like what models do."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

ROWS, WIDTH, INNER = 256, 384, 1536
REPEATS = 2


@dataclass(slots=True)
class Gauge:
    """`read` takes some 10 ms. On virtual machines the same work takes 2-4 % more or less from minute to minute."""

    _inner: torch.Tensor = field(init=False)
    _outer: torch.Tensor = field(init=False)
    _x: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inner = torch.randn(WIDTH, INNER, generator=generator)
        self._outer = torch.randn(INNER, WIDTH, generator=generator)
        self._x = torch.randn(ROWS, WIDTH, generator=generator)

    @torch.no_grad()
    def read(self) -> float:
        """Thread CPU seconds."""
        start = time.thread_time()
        for _ in range(REPEATS):
            torch.tanh(torch.tanh(self._x @ self._inner) @ self._outer)
        return time.thread_time() - start
