"""PipeDream's recursion: the best pipeline of every part of the model, level by level (see `hierarchical_dp`).

With a column per ideal, I_0 = empty, I_n = everything, and T[i, j] the seconds of the stage I_j \\ I_i on one unit:

    A[m][i, j] = min( load(T[i, j], m),   min over k, m' of max( A[m - m'][i, k], later(k, j, m') ) )
    later(k, j, m') = max( load(T[k, j], m'), transfer(I_k, m'), transfer(I_j, m') )

and the T of the next level is A[count]. Only parts I_i within I_j within I_k count: infinite otherwise. Vectorised
over (i, j) below the last level and over j on it: O(ideals^3 counts^2) and O(ideals^2 count^2) steps in numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.pipedream import PipeDreamCost
from planner.errors import LimitError

Array = NDArray[Any]
MAX_STEPS = 4 * 10**9
"""Some 30 seconds of one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedStage:
    """A stage of one level: columns of the ideals around it, its replicas, and its pipeline within each unit."""

    start: int
    end: int
    degree: int
    inner: tuple[NestedStage, ...] = ()


class Levels:
    """All tables of one instance. `replicate` False allows one unit per stage only (a straight pipeline).

    `use_all` demands every unit of every level, as the open optimizer does by default. LimitError when the tables are
    too large or once `expired()` says so.
    """

    def __init__(
        self,
        cost: PipeDreamCost,
        ideals: Sequence[int],
        *,
        replicate: bool = True,
        use_all: bool = True,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        _check_size(cost, len(ideals), replicate=replicate)
        self.cost, self.ideals, self.use_all = cost, ideals, use_all
        self.replicate, self.expired = replicate, expired
        has = np.array([[ideal >> g & 1 for ideal in ideals] for g in range(len(cost.groups))], dtype=float)
        self.within = _contained(has)
        self.weights = self._differences(cost.weight_bytes, has, outside=0.0)
        self.sent = np.array([cost.crossing_bytes(ideal) for ideal in ideals])
        self.units = [self._differences(cost.work_s, has, outside=math.inf)]
        self.tables = [self._table(level) for level in range(len(cost.levels))]

    def best(self) -> tuple[float, tuple[NestedStage, ...]] | None:
        """The smallest period of the whole model and its stages; None when there is no such pipeline."""
        top = len(self.tables) - 1
        value = float(self.tables[top][-1][0, -1])
        if not math.isfinite(value):
            return None
        return value, self._stages(top, 0, len(self.ideals) - 1)

    def _differences(self, figures: Sequence[float], has: Array, outside: float) -> Array:
        """Per pair of columns: the sum over the groups between them; `outside` where one does not hold the other."""
        sums = np.asarray(figures, dtype=float) @ has
        return np.where(self.within, sums[None, :] - sums[:, None], outside)

    def _table(self, level: int) -> list[Array]:
        """A[1], A[2], ... of one level; the last one is T of the next level."""
        last = level == len(self.cost.levels) - 1
        inner = self.units[level][:1] if last else self.units[level]
        weights = self.weights[:1] if last else self.weights
        count = self.cost.levels[level].count
        table: list[Array] = []
        for m in range(1, count + 1):
            best = self._single(inner, weights, m, level)
            for degree in range(1, m if self.replicate else min(m, 2)):
                if self.expired():
                    raise LimitError("hierarchical_dp reached the time limit: raise it, or use coarser layers")
                later = self._later(degree, level)
                np.minimum(best, _min_max(table[m - degree - 1], later), out=best)
            if not self.use_all and table:
                np.minimum(best, table[-1], out=best)
            table.append(best)
        if not last:
            self.units.append(table[-1])
        return table

    def _single(self, inner: Array, weights: Array, m: int, level: int) -> Array:
        """One stage on m units."""
        if m > 1 and not self.replicate:
            return np.full(inner.shape, math.inf)
        return np.array(self.cost.load_s(inner, weights, m, level, first=True), dtype=float)

    def _later(self, degree: int, level: int) -> Array:
        """Seconds of every stage that has another one before it."""
        ends = self.cost.transfer_s(self.sent, degree, level)
        load = self.cost.load_s(self.units[level], self.weights, degree, level, first=False)
        return np.asarray(np.maximum(load, np.maximum(ends[:, None], ends[None, :])))

    def _stages(self, level: int, i: int, j: int) -> tuple[NestedStage, ...]:
        """The pipeline behind A[count][i, j]: fewest replicas of the last stage first, then the earliest cut."""
        table, m, found = self.tables[level], self.cost.levels[level].count, list[NestedStage]()
        while j != i:
            value = table[m - 1][i, j]
            if not self.use_all and m > 1 and table[m - 2][i, j] <= value:
                m -= 1
                continue
            start, degree = self._last_stage(level, i, j, m)
            found.append(NestedStage(start=start, end=j, degree=degree, inner=self._inner(level, start, j)))
            j, m = start, m - degree
        return tuple(reversed(found))

    def _last_stage(self, level: int, i: int, j: int, m: int) -> tuple[int, int]:
        """(start, degree) of the last stage of the best pipeline of I_j \\ I_i on m units."""
        table, value = self.tables[level], self.tables[level][m - 1][i, j]
        if self._single(self.units[level][i : i + 1, j], self.weights[i : i + 1, j], m, level)[0] <= value:
            return i, m
        for degree in range(1, m if self.replicate else min(m, 2)):
            reached = np.maximum(table[m - degree - 1][i], self._later(degree, level)[:, j])
            hits = np.flatnonzero(reached <= value)
            if hits.size:
                return int(hits[0]), degree
        raise AssertionError("a table entry has no origin")

    def _inner(self, level: int, start: int, end: int) -> tuple[NestedStage, ...]:
        return self._stages(level - 1, start, end) if level else ()


def period_s(cost: PipeDreamCost, ideals: Sequence[int], stages: Sequence[NestedStage], level: int) -> float:
    """The period of a pipeline, from `StageCost.seconds` alone: what the tables must agree with."""
    worst = 0.0
    for number, stage in enumerate(stages):
        shape = StageShape(
            layers=ideals[stage.end] & ~ideals[stage.start],
            before=ideals[stage.start],
            degree=stage.degree,
            level=level,
            first=number == 0,
            inner_s=period_s(cost, ideals, stage.inner, level - 1) if level else None,
        )
        worst = max(worst, cost.seconds(shape))
    return worst


def _check_size(cost: PipeDreamCost, num_ideals: int, *, replicate: bool) -> None:
    steps = 0
    for number, level in enumerate(cost.levels):
        pairs = level.count * (level.count - 1) // 2 if replicate else level.count
        last = number == len(cost.levels) - 1
        steps += pairs * num_ideals ** (2 if last else 3)
    if steps > MAX_STEPS:
        counts = " x ".join(str(level.count) for level in cost.levels)
        raise LimitError(
            f"{num_ideals} ideals on {counts} units make {steps} steps (limit {MAX_STEPS}): use coarser layers or "
            "fewer devices"
        )


def _contained(has: Array) -> Array:
    """Whether column i is a proper subset of column j."""
    sizes = has.sum(axis=0)
    contained: Array = (has.T @ has == sizes[:, None]) & (sizes[:, None] < sizes[None, :])
    return contained


def _min_max(before: Array, later: Array) -> Array:
    """min over k of max(before[i, k], later[k, j])."""
    if len(before) == 1:
        return np.asarray(np.maximum(before[0][:, None], later).min(axis=0)[None, :])
    best = np.full((len(before), later.shape[1]), math.inf)
    for k in range(later.shape[0]):
        np.minimum(best, np.maximum(before[:, k : k + 1], later[k][None, :]), out=best)
    return best
