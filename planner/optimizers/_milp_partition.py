"""The variables of the MILP that say which layers a stage holds, and which class of devices it runs on.

    y[v,s] = 1    layer v is in stage s or an earlier one       (binary; y[v,S-1] = 1)
    x[v,s] = y[v,s] - y[v,s-1]                                  (layer v is in stage s)
    y[v,s] >= y[v,s-1],  y[b,s] <= y[a,s] for every a -> b      (stages are convex and in order)
    sum_v x[v,s] >= 1                                           (no empty stage)

The cumulative form is that of Tarnawski et al. 2020 (section 5.1), with y instead of z: acyclic quotients come for
free. Colocated layers share their y. With several classes c of devices, a stage has a slot on each, and uses one:

    used[s,c] = 1    stage s runs on class c                    (binary)
    sum_c used[s,c] = 1,   sum_s used[s,c] <= stages that class c has devices for
    x[v,s,c] <= used[s,c],   sum_c x[v,s,c] = x[v,s],   x[v,s,c] = 0 where class c cannot run v
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulp

from planner.optimizers._milp_prices import Setting, SettingPrices
from planner.problem import Problem

Linear = Any
"""A pulp expression or variable, or a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A stage on the class of devices with number `kind`; `used` is the number 1 where there is only one class."""

    stage: int
    kind: int
    used: Linear
    inside: tuple[Linear, ...]
    """Per layer: whether the slot holds it."""


class Partition:
    """An LP with these variables and no objective; further variables are made by `new`."""

    def __init__(self, problem: Problem, setting: Setting, classes: Sequence[SettingPrices]) -> None:
        self.problem, self.index, self.classes = problem, problem.index, classes
        self.num_stages = setting.num_stages
        self.layers = range(len(self.index))
        self.lp = pulp.LpProblem("partition", pulp.LpMinimize)
        self._count = 0
        self.y = self._prefixes()
        self.slots = [slot for s in range(self.num_stages) for slot in self._slots(s)]
        if len(classes) > 1:
            for c, prices in enumerate(classes):
                used = pulp.lpSum(slot.used for slot in self.slots if slot.kind == c)
                self.lp.addConstraint(used <= prices.most_stages)

    def new(self, cat: str = "Continuous", low: float = 0.0, high: float | None = None) -> Any:
        """One more variable."""
        self._count += 1
        return self.lp.add_variable(f"x{self._count - 1}", low, high, cat)

    def at_least(self, var: Any, bounds: Iterable[Linear]) -> Any:
        """The variable, which is now at least as large as all bounds."""
        for bound in bounds:
            self.lp.addConstraint(var >= bound)
        return var

    def x(self, v: int, slot: Slot) -> Linear:
        """Whether layer v is in the slot."""
        return slot.inside[v]

    def in_stage(self, v: int, s: int) -> Linear:
        """Whether layer v is in stage s, on whatever class."""
        return 1 * self.y[v][s] if s == 0 else self.y[v][s] - self.y[v][s - 1]

    def exclude(self, stage_of: Sequence[int], kinds: Sequence[int]) -> None:
        """Forbid one partition (it did not survive exact pricing)."""
        known = self.start(stage_of, kinds)
        flips = [(1 - var) if known[var.name] else 1 * var for var in self._binaries()]
        self.lp.addConstraint(pulp.lpSum(flips) >= 1)

    def start(self, stage_of: Sequence[int], kinds: Sequence[int]) -> dict[str, float]:
        """The binaries of a known partition: the stage of every layer, the class of every stage."""
        known = {self.y[v][s].name: float(stage_of[v] <= s) for v in self.layers for s in range(self.num_stages - 1)}
        return known | {slot.used.name: float(kinds[slot.stage] == slot.kind) for slot in self._chosen()}

    def stage_of(self, values: Mapping[str, float]) -> list[int]:
        """The stage of every layer in a solution, rounded."""
        return [sum(values[self.y[v][s].name] < 0.5 for s in range(self.num_stages - 1)) for v in self.layers]

    def kinds(self, values: Mapping[str, float]) -> list[int]:
        """The class of every stage in a solution."""
        kinds = [0] * self.num_stages
        for slot in self._chosen():
            if values[slot.used.name] > 0.5:
                kinds[slot.stage] = slot.kind
        return kinds

    def _chosen(self) -> list[Slot]:
        """The slots that there is a choice of."""
        return self.slots if len(self.classes) > 1 else []

    def _binaries(self) -> list[Any]:
        variables = {var.name: var for v in self.layers for var in self.y[v][:-1]}
        return [*variables.values(), *(slot.used for slot in self._chosen())]

    def _prefixes(self) -> list[list[Any]]:
        """The y variables with order, precedence, colocation and no empty stage; y[v][S-1] is the number 1."""
        shared = _representatives(self.problem.graph.colocated, self.index.positions, len(self.index))
        own = {r: [self.new("Integer", 0, 1) for _ in range(self.num_stages - 1)] for r in sorted(set(shared))}
        self.y = [[*own[shared[v]], 1] for v in self.layers]
        for variables in own.values():
            for s in range(1, self.num_stages - 1):
                self.lp.addConstraint(variables[s] >= variables[s - 1])
        for v in self.layers:
            for before in self.index.predecessors[v]:
                if shared[v] != shared[before]:
                    for s in range(self.num_stages - 1):
                        self.lp.addConstraint(self.y[before][s] >= self.y[v][s])
        for s in range(self.num_stages):
            if self.num_stages > 1:
                self.lp.addConstraint(pulp.lpSum(self.in_stage(v, s) for v in self.layers) >= 1)
        return self.y

    def _slots(self, s: int) -> list[Slot]:
        """Stage s on every class."""
        if len(self.classes) == 1:
            return [Slot(stage=s, kind=0, used=1, inside=tuple(self.in_stage(v, s) for v in self.layers))]
        slots = [self._slot(s, c, prices) for c, prices in enumerate(self.classes)]
        self.lp.addConstraint(pulp.lpSum(slot.used for slot in slots) == 1)
        for v in self.layers:
            self.lp.addConstraint(pulp.lpSum(slot.inside[v] for slot in slots) == self.in_stage(v, s))
        return slots

    def _slot(self, s: int, c: int, prices: SettingPrices) -> Slot:
        used = self.new("Integer", 0, 1)
        inside = tuple(self.new(high=1.0 if prices.runs(v) else 0.0) for v in self.layers)
        for variable in inside:
            self.lp.addConstraint(variable <= used)
        return Slot(stage=s, kind=c, used=used, inside=inside)


def _representatives(
    groups: Sequence[Sequence[str]], positions: Callable[[Iterable[str]], list[int]], count: int
) -> list[int]:
    """For every layer the first of those that must share its stage."""
    shared = list(range(count))
    for group in groups:
        members = positions(group)
        first = min(shared[v] for v in members)
        merged = {shared[v] for v in members}
        shared = [first if s in merged else s for s in shared]
    return shared
