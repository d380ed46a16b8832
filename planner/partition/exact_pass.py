"""The recurrence of `ideal_dp`: the smallest bottleneck over all chains of ideals (Tarnawski et al. 2020, section 5).

    D[u, J] = min over ideals I within J and device classes c of max( D[u - e_c, I], load_c(J \\ I) )

u counts the devices used per class, e_c is one of class c, the answer is the smallest D[u, everything]. A stage
S = J \\ I costs

    load_c(S) = work_c(S) + sum of the costs of all tensors that S cuts          (a class that pays no transfers: work)

where S cuts a tensor when some, but not all, of the groups that make or read it are in S: it is then sent or received
once, never both, because ideals are closed towards the inputs. One row of the recurrence prices one I against all its
supersets J at once. With X(J) the cost of the tensors that J cuts, and R the groups of a tensor outside I,

    cut(J \\ I) = X(J) + sum over tensors cut by I of cost * ( [J meets R] + [J contains R] - 1 ).

O(ideals^2 * (tensors cut by an ideal + classes * states)) in numpy, rows pruned by the best value known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ideals import Groups, bits, set_of
from planner.partition.instance import Cut, DeviceClass

Array = NDArray[Any]
MAX_INT64_TOTAL = 2**62
ROUNDING = 1 - 1e-9
"""Differences of prefix sums are trusted to this factor where they rule something out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The smallest bottleneck and its stages in order: (number of the device class, groups as a bitset)."""

    value_s: float
    stages: tuple[tuple[int, int], ...]
    finished: bool = True


def min_bottleneck(
    groups: Groups,
    ideals: Sequence[int],
    classes: Sequence[DeviceClass],
    cuts: Sequence[Cut],
    *,
    num_stages: int | None = None,
    expired: Callable[[], bool] = lambda: False,
) -> Bottleneck | None:
    """The best division into stages whose prefixes are among `ideals` (sorted by size, empty first, full last).

    With all ideals the answer is optimal over stages of any shape. At most one device per stage and one stage per
    device; with `num_stages` exactly that many. None when nothing fits. When `expired()` turns true the best known
    so far is returned, with `finished` false.
    """
    prefixes = [set_of(range(size)) for size in range(len(groups) + 1)]
    first = _Table(groups, prefixes, classes, cuts).solve(num_stages, math.inf, expired)
    if list(ideals) == prefixes:
        return first
    best = _Table(groups, ideals, classes, cuts).solve(num_stages, first.value_s if first else math.inf, expired)
    if best is None and first is not None:
        return Bottleneck(value_s=first.value_s, stages=first.stages, finished=first.finished and not expired())
    return best


class _Table:
    """D and what it is computed from: one column per ideal."""

    def __init__(
        self, groups: Groups, ideals: Sequence[int], classes: Sequence[DeviceClass], cuts: Sequence[Cut]
    ) -> None:
        self.groups, self.ideals, self.classes, self.cuts = groups, ideals, classes, cuts
        self.has = _membership(ideals, len(groups))
        self.crossing = self._crossing("cost_s", float)
        self.returned = self._crossing("returned_bytes", _integers(cut.returned_bytes for cut in cuts))
        self.loads = [_ClassSums(entry, self.has) for entry in classes]
        self.states = list(itertools.product(*(range(entry.count + 1) for entry in classes)))
        self.number = {state: i for i, state in enumerate(self.states)}
        self.left = [sum(entry.count for entry in classes) - sum(state) for state in self.states]
        least = np.min([entry.work_s for entry in classes], axis=0)
        self.least = np.where(np.isfinite(least), least, 0.0) @ self.has

    def solve(self, num_stages: int | None, upper: float, expired: Callable[[], bool]) -> Bottleneck | None:
        """Fill the table from the empty ideal on; only values below `upper` are looked for."""
        value = np.full((len(self.states), len(self.ideals)), math.inf)
        came = np.full(value.shape, -1, dtype=np.int32)
        by = np.full(value.shape, -1, dtype=np.int16)
        value[0, 0] = 0.0
        ends = [i for i, state in enumerate(self.states) if num_stages in (None, sum(state))]
        finished = True
        for i in range(len(self.ideals) - 1):
            if i % 64 == 0 and expired():
                finished = False
                break
            upper = min(upper, value[ends, -1].min(initial=math.inf))
            live = self._live(value, i, upper)
            for c, (targets, loads) in enumerate(self._stages_after(i, upper) if live else []):
                self._relax(value, came, by, live, i, c, targets, loads)
        end = min(ends, key=lambda s: value[s, -1], default=0)
        if not ends or not math.isfinite(value[end, -1]):
            return None
        return Bottleneck(value_s=float(value[end, -1]), stages=self._stages(came, by, end), finished=finished)

    def _live(self, value: Array, i: int, upper: float) -> list[int]:
        """States at ideal i from which a value below `upper` may still be reached with the devices left."""
        rest = (self.least[-1] - self.least[i]) * ROUNDING
        return [s for s, left in enumerate(self.left) if value[s, i] < upper and rest <= left * upper]

    def _relax(
        self, value: Array, came: Array, by: Array, live: list[int], i: int, c: int, targets: Array, loads: Array
    ) -> None:
        """Improve the columns `targets` by a stage of class c after ideal i, from every live state with a device."""
        for s in live:
            after = self._with(s, c)
            if after is None or not targets.size:
                continue
            reached = np.maximum(loads, value[s, i])
            better = reached < value[after, targets]
            where = targets[better]
            value[after, where] = reached[better]
            came[after, where] = i
            by[after, where] = c

    def _with(self, state: int, c: int) -> int | None:
        used = self.states[state]
        return self.number.get((*used[:c], used[c] + 1, *used[c + 1 :]))

    def _stages_after(self, i: int, upper: float) -> list[tuple[Array, Array]]:
        """Per class: the supersets J of ideal i whose stage is allowed and below `upper`, and the stage's load."""
        supersets = self._supersets(i)
        supersets = supersets[(self.least[supersets] - self.least[i]) * ROUNDING < upper]
        sent_s, held_bytes = self._transfers(i, supersets)
        stages = []
        for load in self.loads:
            seconds = load.seconds(i, supersets) + (sent_s if load.entry.pays else 0.0)
            keep = (seconds < upper) & load.fits(i, supersets, held_bytes)
            stages.append((supersets[keep], seconds[keep]))
        return stages

    def _supersets(self, i: int) -> Array:
        """Columns of the larger ideals that contain ideal i: those that contain its maximal groups."""
        contain = np.ones(len(self.ideals) - i - 1, dtype=bool)
        for g in bits(self.groups.maximal(self.ideals[i])):
            contain &= self.has[g, i + 1 :]
        return np.flatnonzero(contain) + i + 1

    def _transfers(self, i: int, supersets: Array) -> tuple[Array, Array]:
        """Per superset J: transfer seconds of the stage J \\ I, and bytes of its buffers."""
        seconds = self.crossing[supersets].copy()
        held = self.returned[supersets].copy()
        ideal = self.ideals[i]
        for cut in self.cuts:
            if cut.groups & ideal and cut.groups & ~ideal:
                outside = np.array(list(bits(cut.groups & ~ideal)))
                rows = self.has[np.ix_(outside, supersets)]
                meets, contains = rows.any(axis=0), rows.all(axis=0)
                seconds += cut.cost_s * (meets.astype(float) + contains - 1.0)
                if cut.received_bytes or cut.returned_bytes:
                    held += meets * cut.received_bytes - ~contains * cut.returned_bytes
        return seconds, held

    def _crossing(self, field: str, kind: Any) -> Array:
        """Per ideal: the sum of a field of the tensors that it cuts."""
        total = np.zeros(len(self.ideals), dtype=kind)
        for cut in self.cuts:
            rows = self.has[list(bits(cut.groups))]
            total += (rows.any(axis=0) & ~rows.all(axis=0)) * getattr(cut, field)
        return total

    def _stages(self, came: Array, by: Array, state: int) -> tuple[tuple[int, int], ...]:
        column = len(self.ideals) - 1
        stages: list[tuple[int, int]] = []
        while column:
            c, before = int(by[state, column]), int(came[state, column])
            stages.append((c, self.ideals[column] & ~self.ideals[before]))
            used = self.states[state]
            state, column = self.number[*used[:c], used[c] - 1, *used[c + 1 :]], before
        return tuple(reversed(stages))


class _ClassSums:
    """Sums over each ideal for one device class."""

    def __init__(self, entry: DeviceClass, has: Array) -> None:
        self.entry = entry
        runs = np.isfinite(np.asarray(entry.work_s, dtype=float))
        self.work = np.where(runs, entry.work_s, 0.0) @ has
        self.cannot = (~runs).astype(np.int64) @ has
        kind = _integers(entry.size_bytes)
        self.size = np.asarray(entry.size_bytes, dtype=kind) @ has.astype(kind)

    def seconds(self, i: int, supersets: Array) -> Array:
        """Work of the stages between ideal i and each superset, with the overhead of a stage."""
        return np.asarray(self.work[supersets] - self.work[i] + self.entry.overhead_s, dtype=float)

    def fits(self, i: int, supersets: Array, held_bytes: Array) -> Array:
        """Whether the device type runs all groups of the stage and holds them with their buffers."""
        needed = self.size[supersets] - self.size[i] + held_bytes
        runs = self.cannot[supersets] == self.cannot[i]
        return np.asarray(runs & (needed <= self.entry.limit_bytes), dtype=bool)


def _integers(values: Iterable[int]) -> Any:
    """The dtype in which no sum of these overflows: 64-bit integers, or Python's own."""
    return np.int64 if sum(values) < MAX_INT64_TOTAL else object


def _membership(ideals: Sequence[int], num_groups: int) -> Array:
    """Row per group, column per ideal: whether the ideal contains the group."""
    width = num_groups // 8 + 1
    packed = np.frombuffer(b"".join(ideal.to_bytes(width, "little") for ideal in ideals), dtype=np.uint8)
    columns = np.unpackbits(packed.reshape(len(ideals), width), axis=1, bitorder="little")[:, :num_groups]
    member: Array = np.ascontiguousarray(columns.T, dtype=bool)
    return member
