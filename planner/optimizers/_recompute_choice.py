"""Which layers of a stage recompute: least compute for every number of microbatches in flight.

Per layer one of two runs is chosen so that sum(A y + B) <= M at the least sum of compute. Layers that save the same
memory are interchangeable but for what they cost, so of each such class the cheapest ones recompute: enumerating how
many per class is exact (transformers have one big class). Where that is too much, recomputing by the ratio of seconds
to bytes saved gives a choice and, with the last layer taken in part, a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.stage_costs.piper import Run
from planner.ideals import set_of

Array = NDArray[Any]
Swap = tuple[int, Run, Run]
"""A group, its plain run and its recomputing one."""
MAX_CHOICES = 20_000
"""Largest number of (how many per class) combinations that are enumerated for one stage."""
ENDLESS = 2**31


class StageRuns:
    """The layers of one stage at one tensor degree: (group, runs) each, the plain run first and fastest."""

    def __init__(self, members: Sequence[tuple[int, tuple[Run, ...]]], memory_bytes: float) -> None:
        self.memory_bytes = memory_bytes
        plain = [runs[0] for _, runs in members]
        self.compute_s = math.fsum(run.compute_s for run in plain)
        self.kept_bytes = math.fsum(run.kept_bytes for run in plain)
        self.fixed_bytes = math.fsum(run.fixed_bytes for run in plain)
        self.classes = _classes(members)

    def least_compute(self, most: int) -> tuple[Array, Array]:
        """(found, bound): compute seconds for y = 0, 1, ..., most; infinite where nothing fits. Equal where exact."""
        if self._enumerable:
            found = self._staircase(most)
            return found, found
        pairs = [self._by_ratio(y)[1:] for y in range(1, most + 1)]
        return np.array([math.inf, *(p[0] for p in pairs)]), np.array([math.inf, *(p[1] for p in pairs)])

    def chosen(self, in_flight: int) -> int:
        """The groups that recompute in the choice behind `found` at this y, as a bitset."""
        if not self._enumerable:
            return self._by_ratio(in_flight)[0]
        compute, held = self._choices
        best = int(np.where(held >= in_flight, compute, math.inf).argmin())
        counts = np.unravel_index(best, [len(members) + 1 for members in self.classes]) if self.classes else ()
        return set_of(g for members, n in zip(self.classes, counts, strict=True) for g, _, _ in members[: int(n)])

    @cached_property
    def _enumerable(self) -> bool:
        return math.prod(len(members) + 1 for members in self.classes) <= MAX_CHOICES

    @cached_property
    def _choices(self) -> tuple[Array, Array]:
        """Per choice: compute seconds, and the most microbatches in flight that fit."""
        compute = _grid(self.compute_s, [[b.compute_s - a.compute_s for _, a, b in c] for c in self.classes])
        kept = _grid(self.kept_bytes, [[b.kept_bytes - a.kept_bytes for _, a, b in c] for c in self.classes])
        fixed = _grid(self.fixed_bytes, [[b.fixed_bytes - a.fixed_bytes for _, a, b in c] for c in self.classes])
        return compute, _most_in_flight(kept, self.memory_bytes - fixed)

    def _staircase(self, most: int) -> Array:
        """Least compute among the choices that fit, per y."""
        compute, held = self._choices
        best = np.full(most + 1, math.inf)
        np.minimum.at(best, np.minimum(held, most), compute)
        best = np.minimum.accumulate(best[::-1])[::-1]
        best[0] = math.inf
        return np.asarray(best)

    def _by_ratio(self, in_flight: int) -> tuple[int, float, float]:
        """(groups, compute, lower bound on it) of the choice by seconds per byte saved."""
        excess = self.kept_bytes * in_flight + self.fixed_bytes - self.memory_bytes
        taken, compute, bound = list[int](), self.compute_s, self.compute_s
        for ratio, saved, g in self._ratios(in_flight):
            if excess <= 0:
                break
            bound = compute + ratio * min(saved, excess)
            compute, excess = compute + ratio * saved, excess - saved
            taken.append(g)
        return (set_of(taken), compute, bound) if excess <= 0 else (0, math.inf, math.inf)

    def _ratios(self, in_flight: int) -> list[tuple[float, float, int]]:
        """(seconds per byte, bytes saved, group) of every layer that saves memory, cheapest first."""
        found = []
        for g, plain, other in (swap for members in self.classes for swap in members):
            saved = (plain.kept_bytes - other.kept_bytes) * in_flight + plain.fixed_bytes - other.fixed_bytes
            if saved > 0:
                found.append(((other.compute_s - plain.compute_s) / saved, saved, g))
        return sorted(found)


def _classes(members: Sequence[tuple[int, tuple[Run, ...]]]) -> list[list[Swap]]:
    """Layers for which recomputing can save memory, by what it saves; the cheapest first in each class."""
    made: dict[tuple[float, float], list[Swap]] = {}
    for g, runs in members:
        for other in runs[1:]:
            saved = (runs[0].kept_bytes - other.kept_bytes, runs[0].fixed_bytes - other.fixed_bytes)
            if max(saved) > 0:
                made.setdefault(saved, []).append((g, runs[0], other))
    return [sorted(swaps, key=lambda s: (s[2].compute_s - s[1].compute_s, s[0])) for swaps in made.values()]


def _grid(start: float, changes: Sequence[Sequence[float]]) -> Array:
    """`start` plus the first n changes of every class, for all combinations of the n."""
    prefixes = [np.concatenate(([0.0], np.cumsum(values))) for values in changes]
    return np.asarray(reduce(lambda a, b: np.add.outer(a, b), prefixes, np.array(start))).ravel()


def _most_in_flight(kept: Array, room: Array) -> Array:
    """The largest y with kept * y <= room; 0 where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        held = np.where(kept > 0, np.floor(room / kept), ENDLESS)
    held -= held * kept > room
    return np.where(room < 0, 0, np.clip(held, 0, ENDLESS)).astype(np.int64)
