"""Clusters with levels: devices in equal units, units in equal larger units, one bandwidth per level."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from planner.problem import Problem

MAX_DEVICES = 512
"""Clusters of more devices are not looked at: every pair's route is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """`count` units of the level below (devices on the lowest one), any two joined with this bandwidth."""

    count: int
    bandwidth_bytes_per_s: float


def hierarchy(problem: Problem) -> tuple[Level, ...] | None:
    """The levels of the cluster from the devices up, in listed order; None when its links form no such hierarchy.

    One device is a level of one unit. O(devices^2) routes.
    """
    ids = [device.id for device in problem.cluster.devices]
    if len(ids) > MAX_DEVICES:
        return None
    widths: dict[tuple[int, int], float] = {}
    for i, j in combinations(range(len(ids)), 2):
        route = problem.network.route(ids[i], ids[j])
        if route is None:
            return None
        widths[i, j] = route.bandwidth_bytes_per_s
    levels = _levels([widths[0, j] for j in range(1, len(ids))])
    sizes = unit_sizes(levels)
    if sizes[-1] != len(ids) or any(width != _width(levels, sizes, *pair) for pair, width in widths.items()):
        return None
    return levels


def unit_sizes(levels: tuple[Level, ...]) -> list[int]:
    """Devices per unit of each level."""
    sizes = [1]
    for level in levels:
        sizes.append(sizes[-1] * level.count)
    return sizes[1:]


def _levels(from_first: list[float]) -> tuple[Level, ...]:
    """Levels as the first device sees them; rounded down where the counts do not divide (then they do not fit)."""
    levels, below = list[Level](), 1
    for width in sorted(set(from_first), reverse=True):
        size = 1 + sum(other >= width for other in from_first)
        levels.append(Level(count=size // below, bandwidth_bytes_per_s=width))
        below = size
    return tuple(levels) or (Level(count=1, bandwidth_bytes_per_s=float("inf")),)


def _width(levels: tuple[Level, ...], sizes: list[int], i: int, j: int) -> float:
    """The bandwidth between two devices in the hierarchy."""
    return next(lv.bandwidth_bytes_per_s for lv, size in zip(levels, sizes, strict=True) if i // size == j // size)
