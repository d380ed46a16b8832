"""The recurrence over ideals: the smallest bottleneck over all chains of them (Tarnawski et al. 2020, section 5).

    D[u, J] = min over ideals I within J and device classes c of max( D[u - e_c, I], load_c(J \\ I) )

u counts the devices used per class, e_c is one of class c, the answer is the smallest D[u, everything]. One forward
pass finds the smallest value below a known one, T, or proves that there is none:

- ideals outside the windows of T are left out (planner.partition.windows);
- where all devices are equal, another pass needs no u (planner.partition.count_pass);
- an ideal is left from the states below T whose rest still fits on the devices left, and from those only that no state
  with fewer devices equals (not where the number of stages is fixed);
- candidates for one stage are a slice of the sorted columns, priced at once (planner.partition.ideal_table);
- T falls with every partition that the pass completes.

O(ideals^2 * (tensors cut by an ideal + classes * states)) in numpy at worst.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.errors import LimitError
from planner.ideals import enumerate_ideals
from planner.partition import count_pass
from planner.partition._lists import Array
from planner.partition.ideal_table import IdealSums, IdealTable, TimeIsUpError
from planner.partition.instance import BottleneckInstance, DeviceClass
from planner.partition.loads import Bottleneck, Stages, valued
from planner.partition.windows import Windows

MAX_IDEALS = 400_000
"""Ideals that are enumerated; about 0.2 GB and a second for 100 groups."""
MAX_CELLS = 150_000_000
"""Bytes and table entries of the pass, about 1.5 GB at most."""
MAX_STATES = 4096
"""Counts of used devices per class."""
EXACT = 1 - 1e-9
"""Values closer than this are equal: prefix sums are subtracted."""


def solve(
    instance: BottleneckInstance,
    upper: Bottleneck | None,
    *,
    expired: Callable[[], bool] = lambda: False,
    max_ideals: int = MAX_IDEALS,
) -> Bottleneck | None:
    """The best partition: a better one than `upper` if there is any (by more than 1e-9), else `upper` itself.

    Optimal if its `finished` is true. None: nothing fits (or, with an expired clock, nothing is known). LimitError
    with the count when there are more than `max_ideals` ideals, or the table would be too large, before it is built.
    """
    below = upper.value_s * EXACT if upper else math.inf
    if upper is not None and below <= 0:
        return upper
    found, finished = improve(instance, enumerate_ideals(instance.groups, max_ideals), below, expired)
    if found is None:
        found = upper
    return found and Bottleneck(value_s=found.value_s, stages=found.stages, finished=finished)


def refute(
    instance: BottleneckInstance,
    below: float,
    *,
    expired: Callable[[], bool] = lambda: False,
    max_ideals: int = MAX_IDEALS,
) -> bool:
    """Whether it is proven that no partition has a bottleneck below `below`: a lower bound that a pass certifies.

    False when there is one or when the clock ended the pass. LimitError as in `solve`.
    """
    found, finished = improve(instance, enumerate_ideals(instance.groups, max_ideals), below, expired)
    return found is None and finished


def improve(
    instance: BottleneckInstance,
    ideals: Sequence[int],
    below: float,
    expired: Callable[[], bool] = lambda: False,
) -> tuple[Bottleneck | None, bool]:
    """The best partition below `below` whose prefixes are among `ideals`, and whether the pass came to its end."""
    if below <= 0 or not instance.num_devices:
        return None, True
    windows = Windows(instance, below)
    try:
        alive = alive_ideals(instance, ideals, windows, expired)
        if len(alive) < 2 or alive[0] or alive[-1] != instance.groups.everything:
            return None, True
        if count_pass.applies(instance):
            _refuse_if_large(instance, len(alive), 1)
            return count_pass.CountPass(instance, alive, below, expired).run(expired)
        return _Pass(instance, alive, windows, below, expired).run(expired)
    except TimeIsUpError:
        return None, False


def alive_ideals(
    instance: BottleneckInstance,
    ideals: Sequence[int],
    windows: Windows,
    expired: Callable[[], bool] = lambda: False,
) -> list[int]:
    """The ideals inside the windows, in their order. TimeIsUpError when `expired()`."""
    sums = IdealSums(instance, ideals, windows.work_s, expired)
    keep = windows.alive(sums.work, sums.crossing)
    return [ideal for ideal, inside in zip(ideals, keep.tolist(), strict=True) if inside]


class _States:
    """Devices used per class, numbered; the last class changes quickest."""

    def __init__(self, instance: BottleneckInstance) -> None:
        classes = [entry for entry in instance.classes if entry.count]
        most = instance.most_stages
        ranges = [range(min(entry.count, most) + 1) for entry in classes]
        if math.prod(map(len, ranges)) > MAX_STATES:
            raise LimitError(
                f"{len(classes)} device classes of {[entry.count for entry in classes]} devices make more than "
                f"{MAX_STATES} counts of used devices: use chain_dp, or fewer device types or memory limits"
            )
        self.used = [used for used in itertools.product(*ranges) if sum(used) <= most]
        number = {used: s for s, used in enumerate(self.used)}
        self.next = [[number.get((*u[:c], u[c] + 1, *u[c + 1 :])) for c in range(len(classes))] for u in self.used]
        self.paying_left = np.array([self._left(classes, used, True) for used in self.used])
        self.free_left = np.array([self._left(classes, used, False) for used in self.used])
        self.ends = [s for s, used in enumerate(self.used) if instance.num_stages in (None, sum(used))]
        vectors = np.array(self.used)
        fewer: Array = np.all(vectors[:, None, :] <= vectors[None, :, :], axis=2)
        np.fill_diagonal(fewer, False)
        self.fewer = fewer if instance.num_stages is None else np.zeros_like(fewer)

    @staticmethod
    def _left(classes: Sequence[DeviceClass], used: tuple[int, ...], pays: bool) -> int:
        return sum(entry.count - u for entry, u in zip(classes, used, strict=True) if entry.pays is pays)


class _Pass:
    """One forward pass: `value[state, ideal]` is D, `came` and `by` say from which ideal and by which class."""

    def __init__(
        self,
        instance: BottleneckInstance,
        alive: list[int],
        windows: Windows,
        below: float,
        expired: Callable[[], bool],
    ) -> None:
        self.instance, self.below = instance, below
        self.states = _States(instance)
        _refuse_if_large(instance, len(alive), len(self.states.used))
        self.table = IdealTable(instance, alive, expired)
        sums = IdealSums(instance, self.table.ideals, windows.work_s, expired)
        self.needed = windows.after(sums.work, sums.crossing)
        self.class_numbers = [c for c, entry in enumerate(instance.classes) if entry.count]
        shape = (len(self.states.used), len(alive))
        self.value = np.full(shape, math.inf)
        self.came = np.full(shape, -1, dtype=np.int32)
        self.by = np.full(shape, -1, dtype=np.int16)

    def run(self, expired: Callable[[], bool]) -> tuple[Bottleneck | None, bool]:
        """Fill the table from the empty ideal on."""
        self.value[0, 0] = 0.0
        for i in range(len(self.table) - 1):
            if i % 64 == 0 and expired():
                return self._best(finished=False), False
            live = self._live(i)
            if live.size:
                self._leave(i, live)
        return self._best(finished=True), True

    def _live(self, i: int) -> Array:
        """States from which ideal i can still be left for a value below the best known."""
        states, value = self.states, self.value[:, i]
        live = np.flatnonzero((value < self.below) & (self.needed[states.free_left, i] <= states.paying_left))
        if live.size < 2:
            return live
        worse: Array = states.fewer[np.ix_(live, live)] & (value[live][:, None] <= value[live])
        return live[~worse.any(axis=0)]

    def _leave(self, i: int, live: Array) -> None:
        """Add every stage that begins after ideal i."""
        columns, stages = self.table.after(i, self.below)
        if not columns.size:
            return
        for c, (kept, seconds) in enumerate(stages):
            targets, loads = columns[kept], seconds[kept]
            for s in live.tolist():
                after = self.states.next[s][c]
                if after is None or not targets.size:
                    continue
                reached = np.maximum(loads, self.value[s, i])
                better = np.flatnonzero(reached < self.value[after, targets])
                where = targets[better]
                self.value[after, where] = reached[better]
                self.came[after, where] = i
                self.by[after, where] = c
        self.below = min(self.below, self.value[self.states.ends, -1].min(initial=math.inf))

    def _best(self, *, finished: bool) -> Bottleneck | None:
        end = min(self.states.ends, key=lambda s: float(self.value[s, -1]), default=0)
        if not self.states.ends or not math.isfinite(self.value[end, -1]):
            return None
        return valued(self.instance, self._stages(end), finished=finished)

    def _stages(self, state: int) -> Stages:
        column = len(self.table) - 1
        stages: list[tuple[int, int]] = []
        while column:
            c, before = int(self.by[state, column]), int(self.came[state, column])
            stages.append((self.class_numbers[c], self.table.ideals[column] & ~self.table.ideals[before]))
            state = next(s for s, after in enumerate(self.states.next) if after[c] == state)
            column = before
        return tuple(reversed(stages))


def _refuse_if_large(instance: BottleneckInstance, num_ideals: int, num_states: int) -> None:
    groups = len(instance.groups)
    cells = num_ideals * (2 * groups + len(instance.cuts) + 14 * num_states) // 10
    if cells > MAX_CELLS:
        raise LimitError(
            f"{num_ideals} ideals of {groups} groups with {num_states} counts of used devices take {10 * cells} bytes, "
            f"more than {10 * MAX_CELLS}: use order_dp or milp"
        )
