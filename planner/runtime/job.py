"""What processes that are pinned to cores and joined by gloo can be asked to do: a `Job`, the same for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one rank of a job runs. `core` is None where processes cannot be bound to cores.

    `send_step(steps done, loss)` tells the parent how far the rank is.
    """

    rank: int
    core: int | None
    num_cores: int
    send_step: Callable[[int, float], None]


class Job(Protocol):
    """Work for `num_ranks` processes; picklable, so that each of them gets it.

    `folder` is a temporary one that all ranks share. `loader` builds the model (and must be importable there).
    """

    @property
    def folder(self) -> Path: ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def loader(self) -> Any: ...

    @property
    def num_ranks(self) -> int: ...

    def name(self, rank: int) -> str:
        """The rank in words, for errors."""

    def work(self, seat: Seat) -> Any:
        """Everything that one rank does; the process group is up. What it returns must be picklable."""
