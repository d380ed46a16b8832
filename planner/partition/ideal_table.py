"""Ideals as columns of arrays: their sums, what they cut, and the stages between one of them and all its supersets.

A stage S = J \\ I of class c loads it with work_c(J) - work_c(I) + cut(S). With X(J) the cost of the tensors cut by J,
and R the groups of a tensor outside I,

    cut(J \\ I) = X(J) - X(I) + sum over tensors cut by I of cost * ( [J meets R] + [J contains R] ),

because a stage cuts a tensor that I leaves alone exactly if J cuts it; one with R = {t} counts 2 cost [t in J], one
with R = {s, t} cost [s in J] + cost [t in J]: sums over rows. So one I is priced against all its supersets at once.

Columns are in the order of exact integer work, then size: supersets come later and the candidates for one stage are a
slice. (Sums of floats can tie or fall between an ideal and a superset, which would break the order of the recurrence.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from planner.ideals import bits
from planner.partition._lists import Array, Lists, chained
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass

T = TypeVar("T")
EVERY = 16
"""Columns or rows between two looks at the clock."""
CHUNK = 8192
"""Columns that are expanded to one byte per group at a time."""
MAX_WORK_UNITS = 2**50
"""All work as an integer: sums stay exact in floats."""
MAX_EXACT = 2**53


class TimeIsUpError(Exception):
    """The clock ran out while columns were made."""


class IdealSums:
    """Work and crossing cost of many ideals, computed in chunks: what windows need, before anything large is kept."""

    def __init__(
        self,
        instance: BottleneckInstance,
        ideals: Sequence[int],
        work_s: Array,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        """`work_s` are seconds per group; `work` and `crossing` get one entry per ideal. Raises TimeIsUpError."""
        self.work = np.zeros(len(ideals))
        self.crossing = np.zeros(len(ideals))
        for start in range(0, len(ideals), CHUNK):
            part = slice(start, start + CHUNK)
            has = membership(ideals[part], len(instance.groups))
            self.work[part] = work_s @ has
            self.crossing[part] = cut_cost(instance.cuts, has, expired)


class IdealTable:
    """The columns of some ideals of an instance, sorted. `ideals[0]` is empty, the last one is everything."""

    def __init__(
        self, instance: BottleneckInstance, ideals: Iterable[int], expired: Callable[[], bool] = lambda: False
    ) -> None:
        """TimeIsUpError when `expired()`."""
        self.instance = instance
        self.classes = [entry for entry in instance.classes if entry.count]
        least = np.min([entry.work_s for entry in self.classes], axis=0) if self.classes else np.zeros(0)
        self.units = _units(np.where(np.isfinite(least), least, 0.0))
        self.ideals = sorted_ideals(list(ideals), self.units)
        count = len(instance.groups)
        self.has = membership(self.ideals, count)
        self.work_units = _exact_sums(self.units.tolist(), self.has)
        self.units_per_s = self.units.sum() / least[np.isfinite(least)].sum() if self.units.any() else 0.0
        self.crossing, self.cut_by = _crossings(instance.cuts, self.has, expired)
        self.maximal = _maximal(instance.groups.after, self.has, expired)
        self.work = [_work_sums(entry, self.has) for entry in self.classes]
        self.cannot = [_exact_sums(np.isinf(entry.work_s).astype(int).tolist(), self.has) for entry in self.classes]
        self.remembers = any(any(entry.size_bytes) for entry in self.classes) or any(
            cut.received_bytes or cut.returned_bytes for cut in instance.cuts
        )
        if self.remembers:
            self.size = [_exact_sums(entry.size_bytes, self.has) for entry in self.classes]
            self.returned = _exact_sums([cut.returned_bytes for cut in instance.cuts], self.cut_by)
        self.linear, self.wide = self._terms()
        self._ends: tuple[float, Array] = (math.nan, np.zeros(0))
        self.overhead_s = min((entry.overhead_s for entry in self.classes), default=0.0)

    def __len__(self) -> int:
        return len(self.ideals)

    def after(self, i: int, below: float) -> tuple[Array, list[tuple[Array, Array]]]:
        """Supersets of ideal i by columns and, per class, which of them (by mask) with what load make a stage.

        Only loads below `below` that fit into memory are allowed.
        """
        columns = self.supersets(i, below)
        sent_s, held = self._transfers(i, columns)
        stages = []
        for c, entry in enumerate(self.classes):
            seconds = self.work[c][columns] - self.work[c][i] + entry.overhead_s
            if entry.pays:
                seconds = seconds + sent_s
            keep = seconds < below
            if self.cannot[c][-1]:
                keep &= self.cannot[c][columns] == self.cannot[c][i]
            if self.remembers:
                keep &= self.size[c][columns] - self.size[c][i] + held <= entry.limit_bytes
            stages.append((np.flatnonzero(keep), seconds))
        return columns, stages

    def supersets(self, i: int, below: float) -> Array:
        """Columns of larger ideals that contain ideal i and whose stage may take less than `below`."""
        end = self._end(i, below)
        contain = np.ones(end - i - 1, dtype=bool)
        for g in self.maximal.of(i):
            contain &= self.has[g, i + 1 : end]
        return contain.nonzero()[0] + (i + 1)

    def _end(self, i: int, below: float) -> int:
        """End of the slice of columns with a work of less than `below` more than that of ideal i."""
        if self._ends[0] != below:
            room = (below - self.overhead_s) * self.units_per_s if self.units_per_s else math.inf
            most = self.work_units + math.ceil(min(room, MAX_WORK_UNITS)) + len(self.units)
            self._ends = (below, np.searchsorted(self.work_units, most, side="right"))
        return max(i + 1, int(self._ends[1][i]))

    def _transfers(self, i: int, columns: Array) -> tuple[Array, Array]:
        """Per superset: transfer seconds of the stage, and bytes of its buffers (zeros where memory is no matter)."""
        seconds = self.crossing[columns] - self.crossing[i]
        held = self.returned[columns] if self.remembers else np.zeros(0)
        rows, costs = self.linear.of(i), self.linear.values_of(i)
        if rows.size:
            seconds += costs @ self.has[rows[:, None], columns]
        for number in self.wide.of(i):
            cut = self.instance.cuts[number]
            outside = [self.has[g, columns] for g in bits(cut.groups & ~self.ideals[i])]
            meets, contains = np.logical_or.reduce(outside), np.logical_and.reduce(outside)
            seconds += cut.cost_s * meets + cut.cost_s * contains
            if self.remembers:
                held = held + meets * cut.received_bytes - ~contains * cut.returned_bytes
        return seconds, held

    def _terms(self) -> tuple[Lists, Lists]:
        """Per ideal: groups outside with what they cost linearly, and the tensors that are no such sums.

        Tensors with one or two groups outside are sums, unless buffers are counted.
        """
        owners, rows, costs, wide = [], [], [], []
        for number, cut in enumerate(self.instance.cuts):
            columns = self.cut_by[number].nonzero()[0]
            if self.remembers:
                wide.append(columns)
                continue
            pins = np.array(list(bits(cut.groups)))
            outside = ~self.has[pins[:, None], columns]
            count = outside.sum(axis=0)
            pin, column = (outside & (count <= 2)).nonzero()
            owners.append(columns[column])
            rows.append(pins[pin])
            costs.append(cut.cost_s * (3 - count[column]))
            wide.append(columns[count > 2])
        numbers = np.repeat(np.arange(len(wide)), [len(columns) for columns in wide])
        size = len(self.ideals)
        return Lists(size, chained(owners), chained(rows), chained(costs)), Lists(size, chained(wide), numbers)


def membership(ideals: Sequence[int], num_groups: int) -> Array:
    """Row per group, column per ideal: whether the ideal contains the group."""
    width = num_groups // 8 + 1
    packed = np.frombuffer(b"".join(ideal.to_bytes(width, "little") for ideal in ideals), dtype=np.uint8)
    columns = np.unpackbits(packed.reshape(len(ideals), width), axis=1, bitorder="little")[:, :num_groups]
    member: Array = np.ascontiguousarray(columns.T).view(bool)
    return member


def in_time(items: Iterable[T], expired: Callable[[], bool]) -> Iterator[T]:
    """The items as long as the clock allows, then TimeIsUpError."""
    for number, item in enumerate(items):
        if number % EVERY == 0 and expired():
            raise TimeIsUpError
        yield item


def cut_cost(cuts: Sequence[Cut], has: Array, expired: Callable[[], bool] = lambda: False) -> Array:
    """Per column: the cost of the tensors that the ideal cuts."""
    total = np.zeros(has.shape[1])
    for cut in in_time(cuts, expired):
        total += cut.cost_s * _is_cut(cut, has)
    return total


def sorted_ideals(ideals: list[int], units: Array) -> list[int]:
    """By integer work, then size, then value."""
    has = membership(ideals, len(units)) if len(ideals) <= CHUNK else None
    if has is not None:
        work = _exact_sums(units.tolist(), has)
    else:
        parts = [membership(ideals[k : k + CHUNK], len(units)) for k in range(0, len(ideals), CHUNK)]
        work = np.concatenate([_exact_sums(units.tolist(), part) for part in parts])
    order = sorted(range(len(ideals)), key=lambda i: (work[i], ideals[i].bit_count(), ideals[i]))
    return [ideals[i] for i in order]


def _units(work_s: Array) -> Array:
    """Work as integers whose total stays below `MAX_WORK_UNITS`."""
    total = float(work_s.sum())
    if not total:
        return np.zeros(len(work_s), dtype=np.int64)
    return np.rint(work_s * (MAX_WORK_UNITS / total)).astype(np.int64)


def _exact_sums(values: Sequence[int], has: Array) -> Array:
    """Sums of integers over each ideal: in float products where they are exact, else in Python's own integers."""
    if sum(values) >= MAX_EXACT:
        sums: Array = np.asarray(values, dtype=object) @ has.astype(object)
        return sums
    return _float_sums(np.asarray(values, dtype=float), has).astype(np.int64)


def _float_sums(values: Array, has: Array) -> Array:
    parts = [values @ has[:, k : k + CHUNK] for k in range(0, has.shape[1], CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _work_sums(entry: DeviceClass, has: Array) -> Array:
    work = np.asarray(entry.work_s, dtype=float)
    return _float_sums(np.where(np.isfinite(work), work, 0.0), has)


def _is_cut(cut: Cut, has: Array) -> Array:
    rows = [has[g] for g in bits(cut.groups)]
    if len(rows) == 2:
        return np.asarray(rows[0] ^ rows[1], dtype=bool)
    return np.asarray(np.logical_or.reduce(rows) & ~np.logical_and.reduce(rows), dtype=bool)


def _crossings(cuts: Sequence[Cut], has: Array, expired: Callable[[], bool]) -> tuple[Array, Array]:
    """Per column the cost of the tensors that the ideal cuts; row per tensor, column per ideal: whether it is cut."""
    total, found = np.zeros(has.shape[1]), np.zeros((len(cuts), has.shape[1]), dtype=bool)
    for number, cut in in_time(enumerate(cuts), expired):
        found[number] = _is_cut(cut, has)
        total += cut.cost_s * found[number]
    return total, found


def _maximal(after: Sequence[int], has: Array, expired: Callable[[], bool]) -> Lists:
    """Per ideal, the groups that are in it and that nothing in it reads."""
    columns = []
    for g, others in in_time(enumerate(after), expired):
        row = has[g]
        for other in bits(others):
            row = row & ~has[other]
        columns.append(row.nonzero()[0])
    groups = np.repeat(np.arange(len(columns)), [len(found) for found in columns])
    return Lists(has.shape[1], chained(columns), groups)
