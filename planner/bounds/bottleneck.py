"""All bounds on the bottleneck within one time limit, the cheap ones first: what the portfolio and benchmarks call.

The order is that of what pays: work and pigeonholes; the groups with the heaviest edges; the exact pass where there
are few ideals; all stages at once where there are few stages; then configurations with whatever time is
left. It stops when the bound meets the value of the known plan. The instance is contracted for values below that first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from planner.bounds._adapter import throughput_bound
from planner.bounds._blocks import blocks_of
from planner.bounds._budget import Budget
from planner.bounds._sides import Sides, applies, sides_of
from planner.bounds.base import BoundQuery
from planner.bounds.configuration import configuration
from planner.bounds.node import node
from planner.bounds.pigeonhole import average, pigeonhole
from planner.bounds.refutation import refutation
from planner.bounds.stages import relaxed_stages, stages
from planner.bounds.three_superblock import three_superblock
from planner.partition.contraction import contract
from planner.partition.instance import BottleneckInstance

FEW_STAGES = 4
"""Up to so many stages the MILP of all of them is the strongest bound on wide graphs."""
CLOSED = 2e-6
"""Nearer than this is equal: what the margins of bounds by LPs and MILPs cost."""
SHARES = {"node": 0.15, "refutation": 0.35, "relaxed_stages": 0.3, "stages": 0.7, "three_superblock": 0.1}
"""The share of the time left that each may take; configurations take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One bound that was computed: its value in seconds (0: nothing proven) and the CPU seconds that it took."""

    name: str
    value_s: float
    cpu_s: float


@dataclass(slots=True, kw_only=True)
class BestBound:
    """The largest bound in seconds, which one it was, and what a third party needs to check it again."""

    value_s: float = 0.0
    name: str = "none"
    details: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)


def best_bound(
    instance: BottleneckInstance,
    upper: float,
    limit_s: float,
    seed: int = 0,
    *,
    exact: bool = True,
    solver: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> BestBound:
    """The best bound on the bottleneck, at most `upper` (the value of a known partition, or infinite).

    Without `exact` the pass over ideals is left out (the caller ran it). Ends within the limit on the clock plus the
    solvers' grace.
    """
    return _Run(instance, upper, Budget(limit_s, seed=seed, solver=solver, clock=clock)).all(exact)


def strongest(query: BoundQuery) -> tuple[float, str] | None:
    """(bound on the objective, what proved it) within the query's time; None where plans are no such partitions.

    The pass over all ideals is left out: `ideal_dp` ran it.
    """
    names: dict[str, None] = {}

    def core(instance: BottleneckInstance, upper: float, budget: Budget) -> float:
        found = best_bound(instance, upper, budget.left_s(), query.seed, exact=False)
        names[found.name] = None
        return found.value_s

    value = throughput_bound(query, core)
    return None if value is None else (value, ", ".join(names))


class _Run:
    """One instance with its best bound so far."""

    def __init__(self, instance: BottleneckInstance, upper: float, budget: Budget) -> None:
        below = upper if math.isfinite(upper) else None
        self.instance = contract(instance, below=below, keep_memory=False).instance
        self.upper, self.budget, self.best = upper, budget, BestBound()
        self.num_stages = instance.most_stages

    def all(self, exact: bool) -> BestBound:
        """In order, until the bound is closed or the time is over."""
        self._try("work", lambda budget: average(self.instance, self.upper))
        self._try("pigeonhole", lambda budget: pigeonhole(self.instance, self.upper))
        self._try("node", lambda budget: node(self.instance, self.upper, budget))
        if exact:
            self._try("refutation", lambda budget: refutation(self.instance, self.upper, budget))
        self._try("relaxed_stages", self._relaxed)
        if self.num_stages <= FEW_STAGES:
            self._try("stages", lambda budget: stages(self.instance, self.upper, budget, sides=self.sides))
            self._try("three_superblock", lambda budget: three_superblock(self.instance, self.upper, budget))
        self._try("configuration", self._configuration)
        return self.best

    @cached_property
    def sides(self) -> Sides | None:
        """What several bounds use, made once."""
        blocks = blocks_of(self.instance)
        return sides_of(blocks, self.budget) if applies(blocks) and math.isfinite(self.upper) else None

    def closed(self) -> bool:
        """Whether the bound meets the upper value."""
        return self.best.value_s >= self.upper * (1 - CLOSED)

    def _try(self, name: str, bound: Callable[[Budget], float]) -> None:
        if self.closed() or (self.budget.expired() and self.best.trials):
            return
        started = time.process_time()
        value = min(self.upper, bound(self.budget.part(self.budget.left_s() * SHARES.get(name, 1.0))))
        self.best.trials.append(Trial(name=name, value_s=value, cpu_s=time.process_time() - started))
        if value > self.best.value_s:
            self.best.value_s, self.best.name = value, name
            if name != "configuration":
                self.best.details = self._details()

    def _relaxed(self, budget: Budget) -> float:
        return relaxed_stages(self.instance, self.upper, budget, known=self.best.value_s, sides=self.sides)

    def _details(self) -> dict[str, Any]:
        return {"groups": len(self.instance.groups), "stages": self.num_stages, "contracted_below_s": self.upper}

    def _configuration(self, budget: Budget) -> float:
        found = configuration(self.instance, self.upper, budget, known=self.best.value_s, sides=self.sides)
        if found.num_cells:
            self.best.details = {**self._details(), "weights": list(found.weights), "cells": found.num_cells}
        return found.value_s
