"""Blocks: what every bound on the bottleneck knows of a stage, and the averaging argument that they share.

A relaxation of a `BottleneckInstance`: classes of devices that pay for transfers become one class of `num_paying`
devices with the least work of any of them; memory is unlimited. A block is a convex set S of groups (no path leaves it
and returns) on a paying device, and costs

    f(S) = overhead + w(S) + sum of the costs of the tensors with some, but not all, of their groups in S.

Every stage on a paying device is a block of at most the stage's load, because stages are differences of nested ideals.

Averaging. Let pi >= 0 be weights of groups. In a partition with a bottleneck below T the stages on free device class c
(one that pays no transfers) hold at most count_c * F_c(T) of pi, where F_c(T) = max { pi(S) : w_c(S) < T }, so that

    some block S with f(S) < T has   pi(S) >= need = ( pi(all) - sum_c count_c F_c(T) ) / num_paying .

If no block has (a dual bound says so), the bottleneck is at least T. F_c is overestimated by the fractional knapsack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.ideals import bits
from planner.partition.instance import BottleneckInstance, DeviceClass

ROUNDING = 1e-9
"""Sums in another order may differ by this factor: needs are lowered, and bounds with them, by it."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The relaxation. `work[g]` seconds (infinite: no paying device runs it), `cuts` (groups, seconds), both in the
    order of the instance. `before[g]` and `after[g]` are bitsets of neighbours."""

    work: tuple[float, ...]
    cuts: tuple[tuple[tuple[int, ...], float], ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    num_paying: int
    overhead_s: float
    free: tuple[DeviceClass, ...]

    def __len__(self) -> int:
        return len(self.work)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Per group, the groups with a path to it. Groups are in topological order."""
        return _closure(self.before, range(len(self)))

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """Per group, the groups that it has a path to."""
        return _closure(self.after, range(len(self) - 1, -1, -1))

    @cached_property
    def tables(self) -> Tables:
        """The same as arrays."""
        return Tables(self)

    def between(self, a: int, b: int) -> int:
        """Groups that are in every convex set with a and b (a before b), these included; 0 without a path."""
        return (self.descendants[a] & self.ancestors[b] | 1 << a | 1 << b) if self.descendants[a] >> b & 1 else 0

    @cached_property
    def cuts_of(self) -> tuple[tuple[int, ...], ...]:
        """Per group, the numbers of the cuts that it is an end of."""
        found: list[list[int]] = [[] for _ in self.work]
        for number, (ends, _) in enumerate(self.cuts):
            for g in ends:
                found[g].append(number)
        return tuple(tuple(numbers) for numbers in found)

    @cached_property
    def cut_sets(self) -> tuple[int, ...]:
        """Per cut, its groups as a bitset."""
        return tuple(sum(1 << g for g in ends) for ends, _ in self.cuts)

    def work_of(self, block: int) -> float:
        """w(S) in seconds."""
        return math.fsum(self.work[g] for g in bits(block))

    def cost(self, block: int) -> float:
        """f(S) in seconds."""
        touched = {number for g in bits(block) for number in self.cuts_of[g]}
        sent = math.fsum(self.cuts[number][1] for number in touched if self.cut_sets[number] & ~block)
        return self.overhead_s + self.work_of(block) + sent

    def alone_s(self, g: int) -> float:
        """What the block of group g alone costs."""
        return self._alone[g]

    @cached_property
    def _alone(self) -> tuple[float, ...]:
        return tuple(self.cost(1 << g) for g in range(len(self)))

    def need(self, weights: Sequence[float], upper: float) -> float:
        """What some block below `upper` weighs at least; infinite where no paying device is left to take it."""
        total = math.fsum(weights)
        elsewhere = sum(entry.count * heaviest_below(weights, entry, upper) for entry in self.free)
        left = total * (1 - ROUNDING) - elsewhere * (1 + ROUNDING)
        if self.num_paying == 0:
            return math.inf if left > 0 else 0.0
        return max(0.0, left / self.num_paying)


class Tables:
    """Arrays over groups (rows) and groups or cuts (columns): for questions about many groups at once."""

    def __init__(self, blocks: Blocks) -> None:
        self._width = len(blocks)
        self.ancestors = np.array([self.row(groups) for groups in blocks.ancestors]).reshape(-1, self._width)
        self.descendants = np.array([self.row(groups) for groups in blocks.descendants]).reshape(-1, self._width)
        self.work = np.array([work if math.isfinite(work) else 0.0 for work in blocks.work])
        self.prices = np.array([price for _, price in blocks.cuts])
        self.ends = np.zeros((self._width, len(blocks.cuts)), dtype=float)
        for number, (ends, _) in enumerate(blocks.cuts):
            self.ends[list(ends), number] = 1.0

    def touching(self, row: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which cuts have an end among the groups of a row."""
        return np.asarray(self.ends[row].any(axis=0), dtype=bool)

    def row(self, groups: int) -> NDArray[np.bool_]:
        """A bitset as booleans."""
        raw = np.frombuffer(groups.to_bytes(self._width // 8 + 1, "little"), dtype=np.uint8)
        return np.unpackbits(raw, count=self._width, bitorder="little").astype(bool)


def blocks_of(instance: BottleneckInstance) -> Blocks:
    """The relaxation of an instance. No class has more devices than there can be stages."""
    paying = [entry for entry in instance.classes if entry.pays and entry.count]
    free = [entry for entry in instance.classes if not entry.pays and entry.count]
    size = len(instance.groups)
    return Blocks(
        work=tuple(min((float(entry.work_s[g]) for entry in paying), default=math.inf) for g in range(size)),
        cuts=tuple((tuple(bits(cut.groups)), cut.cost_s) for cut in instance.cuts if cut.cost_s > 0),
        before=instance.groups.before,
        after=instance.groups.after,
        num_paying=min(instance.most_stages, sum(entry.count for entry in paying)),
        overhead_s=min((entry.overhead_s for entry in paying), default=0.0),
        free=tuple(free),
    )


def least_work(instance: BottleneckInstance) -> list[float]:
    """Per group, the least seconds on any device class."""
    used = [entry for entry in instance.classes if entry.count]
    return [min((float(entry.work_s[g]) for entry in used), default=math.inf) for g in range(len(instance.groups))]


def heaviest_below(weights: Sequence[float], entry: DeviceClass, upper: float) -> float:
    """The most weight on one device of a free class within `upper` seconds, groups taken fractionally."""
    room = upper - entry.overhead_s
    taken = 0.0
    order = sorted(range(len(weights)), key=lambda g: -_density(weights[g], entry.work_s[g]))
    for g in order if room > 0 else []:
        seconds = entry.work_s[g]
        if weights[g] <= 0 or not math.isfinite(seconds):
            continue
        part = 1.0 if seconds <= room else room / seconds
        taken += part * weights[g]
        room -= part * seconds
        if part < 1.0:
            break
    return taken


def _density(weight: float, seconds: float) -> float:
    return weight / seconds if seconds > 0 else math.inf


def last_refuted(refuted: Callable[[float], bool], low: float, high: float, rounds: int) -> float:
    """A value up to `high` that is refuted, by bisection; `low` (which the caller knows to be one) if none is found.

    Sound whether or not `refuted` is monotone: only values that it refuted are returned.
    """
    if refuted(high):
        return high
    for _ in range(rounds):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


def _closure(neighbours: Sequence[int], order: Sequence[int] | Iterator[int] | range) -> tuple[int, ...]:
    reached = [0] * len(neighbours)
    for g in order:
        for h in bits(neighbours[g]):
            reached[g] |= reached[h] | 1 << h
    return tuple(reached)
