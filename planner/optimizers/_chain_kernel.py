"""The recurrence of `chain_dp`: over suffixes of the chain, from the last stage to the first.

    D[k, u, l, r](i) = best value of layers i .. n-1 in k stages on u groups (per class),
                       whose first stage has config r and is preceded by a stage of config l (or by none)

    D[k+1, u+l, l', l](i) = min over j > i of  stage_l(i, j) (+) boundary_{l', l}(i) (+) D[k, u, l, r](j)

with (+) a sum (seconds of one microbatch through the pipe, under a cap on the period and on the tails) or a maximum
(the period). Building from the end makes the number of microbatches that a stage holds known when it is placed, and
committing to the config l' before a stage makes its transfers known, so both are exact on chains.
A cap on the period also limits how many layers a stage can have: only so many ends are looked at (`_Window`).
Memory: O(k |u| R^2 n) numbers; time: O(k |u| R^2 n w) with w the most layers of a stage, in `blocking` R^3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from planner.costs.compute import CANNOT_RUN_S
from planner.costs.intervals import Array
from planner.optimizers._chain_space import BoundaryArrays, ChainSpace, Config, Counts, StageArrays
from planner.options import SearchModel


class Goal(Enum):
    """What a sweep minimises: the passes' sum under caps, the period, the worst tail, or the worst memory excess."""

    SUM = "sum"
    PERIOD = "period"
    TAIL = "tail"
    EXCESS = "excess"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits of one sweep. `tail_weight` adds that share of the tail to a stage's load (throughput of training)."""

    period_s: float = np.inf
    tail_s: float = np.inf
    tail_weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """One chain of stages: (first layer, end, config, counts before placing), with what the sweep's model says."""

    value: float
    stages: list[tuple[int, int, Config, Counts]]
    sum_s: float
    period_s: float
    tail_s: float


@dataclass(frozen=True, slots=True)
class _State:
    counts: Counts
    right: Config | None
    left: Config | None


@dataclass(slots=True)
class _Row:
    """Values per boundary i, and where each came from: the end of the stage and the state after it."""

    value: Array
    end: Array
    after: list[_State]
    which: Array


class _Window:
    """Intervals of at most `width` layers, as arrays of shape (n + 1, width): entry [i, w] ends before i + w + 1."""

    def __init__(self, width: int, may_cut: Array) -> None:
        n = len(may_cut) - 1
        ends = np.arange(n + 1)[:, None] + np.arange(1, width + 1)[None, :]
        self.width = width
        self.inside: Array = (ends <= n) & may_cut[np.minimum(ends, n)]
        self._flat = np.arange(n + 1)[:, None] * (n + 1) + np.minimum(ends, n)

    def of(self, table: Array) -> Array:
        """The entries of a table of intervals [i, j]."""
        found: Array = table.take(self._flat)
        return found

    def at_end(self, row: Array) -> Array:
        """The entries of a row of boundaries where the intervals end (infinite outside)."""
        padded = np.concatenate((row[1:], np.full(self.width, np.inf)))
        return np.lib.stride_tricks.sliding_window_view(padded, self.width)


class Sweep:
    """One pass of the recurrence over a space.

    `finished` turns False when the search's clock ended it: what it then says is the best of what it reached.
    """

    def __init__(self, space: ChainSpace, goal: Goal, caps: Caps) -> None:
        self.space, self.goal, self.caps = space, goal, caps
        self.n = space.num_layers
        self.finished = True
        self.rows: list[dict[_State, _Row]] = []
        self._per_left = space.model is SearchModel.BLOCKING and goal in (Goal.SUM, Goal.PERIOD)
        none = np.zeros(self.n + 1)
        self._no_boundary = BoundaryArrays(moved_s=none, link_s=none, left_pays_s=none, right_pays_s=none)
        self._windows: dict[int, _Window] = {}
        self._window_of: dict[int, tuple[Array, _Window]] = {}
        self._views: dict[int, tuple[Array, Array]] = {}
        self._tables: dict[tuple[int, int, int], tuple[object, Array]] = {}

    def best(self, max_stages: int, num_stages: int | None) -> Solution | None:
        """The best solution of at most `max_stages` (exactly `num_stages`) stages; None when there is none.

        Ties: fewer stages, then the state met first (deterministic).
        """
        self.rows = [self._empty()]
        found: tuple[float, int, _State] | None = None
        for k in range(1, (num_stages or max_stages) + 1):
            self.rows.append(self._extend(self.rows[-1], k))
            if not self.rows[-1]:
                break
            if num_stages in (None, k):
                for state, row in self.rows[k].items():
                    value = float(row.value[0])
                    if state.left is None and np.isfinite(value) and (found is None or value < found[0]):
                        found = (value, k, state)
        return None if found is None else self._solution(*found)

    def per_stage_count(self) -> list[Solution]:
        """The best solution for every number of stages that the sweep reached, fewest stages first."""
        found = []
        for k, rows in enumerate(self.rows):
            finished = [(float(row.value[0]), state) for state, row in rows.items() if k and state.left is None]
            value, state = min(finished, key=lambda pair: pair[0], default=(np.inf, None))
            if state is not None and np.isfinite(value):
                found.append(self._solution(value, k, state))
        return found

    def _empty(self) -> dict[_State, _Row]:
        value = np.full(self.n + 1, np.inf)
        value[self.n] = 0.0 if self.goal is not Goal.EXCESS else -np.inf
        none = np.full(self.n + 1, -1)
        start = tuple(0 for _ in self.space.classes)
        return {_State(start, None, left): _Row(value, none, [], none) for left in self.space.configs}

    def _extend(self, rows: dict[_State, _Row], k: int) -> dict[_State, _Row]:
        """All states with one more stage in front."""
        new: dict[_State, _Row] = {}
        self._tables.clear()
        for state, row in rows.items():
            if self.space.context.clock.expired():
                self.finished = False
                return {}
            if state.left is None or not (row.value < np.inf).any():
                continue
            counts = self.space.add(state.counts, state.left)
            if counts is None:
                continue
            after = self._boundary(state.counts, state.left, state.right)
            if after is not None:
                self._place(new, state, row, counts, after, k)
        return new

    def _place(
        self, new: dict[_State, _Row], state: _State, row: _Row, counts: Counts, after: BoundaryArrays, k: int
    ) -> None:
        """Put the stage that `state` commits to in front, with every config (or none) before it."""
        left = state.left
        assert left is not None
        arrays = self.space.stage(state.counts, left, k)
        if arrays is None:
            return
        shared = None if self._per_left else self._minimise(arrays, row, after, None)
        for before in [None, *self.space.configs]:
            if before is not None and self.space.add(counts, before) is None:
                continue
            boundary = self._boundary(counts, before, left)
            if boundary is None:
                continue
            value, end = shared if shared is not None else self._minimise(arrays, row, after, boundary)
            if before is None:
                value = np.where(np.arange(self.n + 1) == 0, value, np.inf)
            else:
                value = self._cross(value, boundary)
            _keep(new, _State(counts, left, before), value, end, state)

    def _minimise(
        self, arrays: StageArrays, row: _Row, after: BoundaryArrays, before: BoundaryArrays | None
    ) -> tuple[Array, Array]:
        """Best end j for every start i of the stage in front of `row`."""
        window = self._window(arrays.load_s)
        table, ahead = self._stage_values(window, arrays, after, before), window.at_end(row.value)
        table = table + ahead if self.goal is Goal.SUM else np.maximum(table, ahead)
        at, last = np.arange(self.n + 1), table.argmin(axis=1)
        return table[at, last], at + last + 1

    def _window(self, load_s: Array) -> _Window:
        """As wide as the longest stage whose load stays within the cap."""
        key = id(load_s)
        if key not in self._window_of:
            width = self.n
            if np.isfinite(self.caps.period_s):
                fits = np.triu(load_s <= self.caps.period_s, 1)
                longest = np.where(fits.any(axis=1), self.n - fits[:, ::-1].argmax(axis=1) - np.arange(self.n + 1), 1)
                width = int(longest.max())
            if width not in self._windows:
                self._windows[width] = _Window(width, self.space.may_cut)
            self._window_of[key] = (load_s, self._windows[width])
        return self._window_of[key][1]

    def _view(self, window: _Window, table: Array) -> Array:
        """`window.of(table)`, remembered for tables that stages of any depth share."""
        found = self._views.get(id(table))
        if found is None or found[1].shape[1] != window.width:
            found = self._views[id(table)] = (table, window.of(table))
        return found[1]

    def _stage_values(
        self, window: _Window, arrays: StageArrays, after: BoundaryArrays, before: BoundaryArrays | None
    ) -> Array:
        """What stages contribute, in the window; infinite where they are not allowed. Shared by states of one depth."""
        ends = (after, before) if self._per_left else (None, None)
        key = (id(arrays), id(ends[0]), id(ends[1]))
        if key not in self._tables:
            self._tables[key] = ((arrays, *ends), self._allowed_values(window, arrays, after, before))
        return self._tables[key][1]

    def _allowed_values(
        self, window: _Window, arrays: StageArrays, after: BoundaryArrays, before: BoundaryArrays | None
    ) -> Array:
        passes, excess = self._view(window, arrays.pass_s), window.of(arrays.excess_bytes)
        possible = window.inside & (passes < CANNOT_RUN_S)
        if self.goal is Goal.EXCESS:
            return np.where(possible, excess.astype(float), np.inf)
        tail, load = self._view(window, arrays.tail_s), self._view(window, arrays.load_s)
        possible &= (excess <= 0) & (tail <= self.caps.tail_s) & (tail < CANNOT_RUN_S)
        load = load + self.caps.tail_weight * tail + window.at_end(after.left_pays_s)
        if before is not None:
            load = load + before.right_pays_s[:, None]
        possible &= load <= self.caps.period_s
        values = {Goal.TAIL: tail, Goal.PERIOD: load, Goal.SUM: passes}[self.goal]
        return np.where(possible, values, np.inf)

    def _cross(self, value: Array, boundary: BoundaryArrays) -> Array:
        """Add the boundary before the stage."""
        if self.goal is Goal.SUM:
            return np.where(boundary.link_s <= self.caps.period_s, value + boundary.moved_s, np.inf)
        return np.maximum(value, boundary.link_s) if self.goal is Goal.PERIOD else value

    def _boundary(self, counts: Counts, left: Config | None, right: Config | None) -> BoundaryArrays | None:
        if left is None or right is None:
            return self._no_boundary
        return self.space.boundary(counts, left, right)

    def _solution(self, value: float, k: int, state: _State) -> Solution:
        stages: list[tuple[int, int, Config, Counts]] = []
        at, total, period, tail = 0, 0.0, 0.0, 0.0
        while k:
            row = self.rows[k][state]
            end, after = int(row.end[at]), row.after[int(row.which[at])]
            config = state.right
            assert config is not None
            stages.append((at, end, config, after.counts))
            before = self._boundary(state.counts, state.left, config)
            behind = self._boundary(after.counts, config, after.right)
            arrays = self.space.stage(after.counts, config, k)
            assert before is not None
            assert behind is not None
            assert arrays is not None
            pays = float(before.right_pays_s[at] + behind.left_pays_s[end])
            weighted = self.caps.tail_weight * float(arrays.tail_s[at, end])
            period = max(period, float(arrays.load_s[at, end]) + pays + weighted, float(before.link_s[at]))
            total += float(arrays.pass_s[at, end] + before.moved_s[at])
            tail = max(tail, float(arrays.tail_s[at, end]))
            at, state, k = end, after, k - 1
        return Solution(value=value, stages=stages, sum_s=total, period_s=period, tail_s=tail)


def _keep(new: dict[_State, _Row], state: _State, value: Array, end: Array, source: _State) -> None:
    """Merge values into the row of `state`, remembering the source of the smaller ones."""
    row = new.get(state)
    if row is None:
        new[state] = _Row(value, end, [source], np.zeros(len(value), dtype=np.int64))
        return
    better = value < row.value
    if better.any():
        row.after.append(source)
        row.which = np.where(better, len(row.after) - 1, row.which)
        row.end = np.where(better, end, row.end)
        row.value = np.where(better, value, row.value)
