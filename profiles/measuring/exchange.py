"""Messages between the ranks of a process group, timed in the state of use.

One rank works for a moment, sends, and gets the message back from a rank that was waiting for it; half of the way there
and back is one way. Plain ping-pong between barriers is useless on gloo: it showed 0.12 or 1.8 ms for the same message,
depending on whether its threads had fallen asleep (our study of runs, section 4).
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from planner.runtime.job import Seat

WARM_UP = 3
WORK_SIZE = {"cpu": 384, "cuda": 2048}
"""Rows and columns of the product that the sender works on before it sends: about a millisecond."""

PairSeconds = dict[tuple[int, int], dict[int, float]]
"""(rank, rank) -> message bytes -> median seconds one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksJob:
    """For `planner.runtime.launch`: `num_ranks` pinned processes on this machine measure the links between them."""

    num_ranks: int
    sizes: tuple[int, ...]
    repeats: int
    timeout_s: float
    folder: Path
    loader: None = None

    def name(self, rank: int) -> str:
        """In errors."""
        return f"rank {rank}"

    def work(self, seat: Seat) -> PairSeconds:
        """What this rank timed."""
        steps = itertools.count(1)
        return time_pairs(self.sizes, self.repeats, torch.device("cpu"), lambda: seat.send_step(next(steps), 0.0))


def time_pairs(
    sizes: Sequence[int], repeats: int, device: torch.device, tick: Callable[[], None] = lambda: None
) -> PairSeconds:
    """Every pair of ranks in turn, while all others wait. The first rank of a pair times; `tick` after each pair.

    All ranks of the default process group call this together.
    """
    mine = dist.get_rank()
    found: PairSeconds = {}
    for pair in itertools.combinations(range(dist.get_world_size()), 2):
        dist.barrier()
        if mine in pair:
            other = pair[1] if mine == pair[0] else pair[0]
            seconds = {size: _time_messages(size, repeats, other, device, starts=mine == pair[0]) for size in sizes}
            if mine == pair[0]:
                found[pair] = seconds
        tick()
    return found


def _time_messages(size: int, repeats: int, other: int, device: torch.device, *, starts: bool) -> float:
    """Median seconds of one way (meaningless on the rank that only answers)."""
    there = torch.ones(size, dtype=torch.uint8, device=device)
    back = torch.empty_like(there)
    matrix = torch.full((WORK_SIZE[device.type],) * 2, 0.5, device=device)
    samples = []
    for _ in range(WARM_UP + repeats):
        if not starts:
            _receive(back, other)
            _send(back, other)
            continue
        torch.mm(matrix, matrix)
        start = _now(device)
        _send(there, other)
        _receive(back, other)
        samples.append((_now(device) - start) / 2)
    return statistics.median(samples[WARM_UP:]) if starts else 0.0


def _send(tensor: torch.Tensor, to: int) -> None:
    work: Any = dist.isend(tensor, to)
    work.wait()


def _receive(tensor: torch.Tensor, source: int) -> None:
    work: Any = dist.irecv(tensor, source)
    work.wait()


def _now(device: torch.device) -> float:
    """Wall clock, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
