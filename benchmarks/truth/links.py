"""How long a message takes between two cores, measured as runs use it.

The sender computes before and after it posts the message, the receiver waits.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

SIZES = (65_536, 196_608, 393_216, 1_048_576, 4_194_304)
REPEATS = 15
COMPUTE_SIZE, PRODUCTS = 384, 20
"""Order and number of the matrices that are multiplied before and after a message is sent: some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """Per size in bytes when messages were sent (on the sender) or had arrived (on the receiver), in seconds."""

    at_s: dict[int, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """A line through the median times of the sizes; `medians_s` are these."""

    latency_s: float
    bandwidth_bytes_per_s: float
    medians_s: dict[int, float]


def time_links(rank: int) -> LinkTimes:
    """Rank 0 sends, rank 1 receives. Collective, in a group of two."""
    import torch
    import torch.distributed as dist

    block = torch.randn(COMPUTE_SIZE, COMPUTE_SIZE)
    found: dict[int, list[float]] = {}
    for size in SIZES:
        message = torch.zeros(size // 4)
        found[size] = []
        for _ in range(REPEATS):
            dist.barrier()
            if rank == 0:
                _compute(block)
                found[size].append(time.monotonic())
                work = dist.isend(message, dst=1)
                _compute(block)
            else:
                work = dist.irecv(message, src=0)
            assert work is not None
            work.wait()
            if rank:
                found[size].append(time.monotonic())
    return LinkTimes(at_s=found)


def _compute(block: Any) -> None:
    for _ in range(PRODUCTS):
        block @ block


def link_cost(sender: LinkTimes, receiver: LinkTimes) -> LinkCost:
    """Least squares over the sizes, each by its relative distance."""
    medians = {
        size: statistics.median(b - a for a, b in zip(sender.at_s[size], receiver.at_s[size], strict=True))
        for size in sender.at_s
    }
    weights = {size: 1 / seconds**2 for size, seconds in medians.items()}
    total = sum(weights.values())
    mean_size = sum(weights[s] * s for s in medians) / total
    mean_s = sum(weights[s] * medians[s] for s in medians) / total
    slope = sum(weights[s] * (s - mean_size) * (medians[s] - mean_s) for s in medians)
    slope /= sum(weights[s] * (s - mean_size) ** 2 for s in medians)
    slope = max(slope, 1e-12)
    return LinkCost(latency_s=max(0.0, mean_s - slope * mean_size), bandwidth_bytes_per_s=1 / slope, medians_s=medians)
