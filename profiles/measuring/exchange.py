"""Messages between the ranks of a process group, timed in the state of use.

The sender works, sends, and goes on working; the receiver waits, and notes when the message is there. Clocks of two
hosts differ: the same is done the other way round, and in the mean of both ways the difference cancels. Plain ping-pong
is useless on gloo: it showed 0.12 or 1.8 ms for the same message, depending on whether its threads had fallen asleep
(our study of runs, section 4).
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
"""Rows and columns of the product that the sender works on before and after it sends: about a millisecond."""

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
    """Every pair of ranks in turn, while all others wait: what the first rank of each measured. `tick` after each pair.

    All ranks of the default process group call this together.
    """
    mine = dist.get_rank()
    found: PairSeconds = {}
    for pair in itertools.combinations(range(dist.get_world_size()), 2):
        dist.barrier()
        if mine in pair:
            link = _Link(pair[1] if mine == pair[0] else pair[0], device, is_first=mine == pair[0])
            seconds = {size: link.one_way(size, repeats) for size in sizes}
            if link.is_first:
                found[pair] = seconds
        tick()
    return found


@dataclass(frozen=True, slots=True)
class _Link:
    """One end of a pair: the rank at the other end, and who sends first."""

    other: int
    device: torch.device
    is_first: bool

    def one_way(self, size: int, repeats: int) -> float:
        """Median seconds of a message, the mean of both ways; only the first rank's answer means anything."""
        message = torch.ones(size, dtype=torch.uint8, device=self.device)
        ways = [self._stamps(message, repeats, sends=sends) for sends in (self.is_first, not self.is_first)]
        own = torch.tensor(ways, dtype=torch.float64, device=self.device)
        theirs = torch.empty_like(own)
        if not self.is_first:
            _done(dist.isend(own, self.other))
            return 0.0
        _done(dist.irecv(theirs, self.other))
        there, back = theirs[0] - own[0], own[1] - theirs[1]
        return float(statistics.median(there.tolist()) + statistics.median(back.tolist())) / 2

    def _stamps(self, message: torch.Tensor, repeats: int, *, sends: bool) -> list[float]:
        """When each message was sent, or was there; without those that warm up."""
        matrix = torch.full((WORK_SIZE[self.device.type],) * 2, 0.5, device=self.device)
        stamps = []
        for _ in range(WARM_UP + repeats):
            if sends:
                torch.mm(matrix, matrix)
                stamps.append(_now(self.device))
                sending = dist.isend(message, self.other)
                torch.mm(matrix, matrix)
                _done(sending)
            else:
                _done(dist.irecv(message, self.other))
                stamps.append(_now(self.device))
        return stamps[WARM_UP:]


def _done(work: Any) -> None:
    work.wait()


def _now(device: torch.device) -> float:
    """The host's clock, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
