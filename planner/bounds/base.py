"""The protocol of certified lower bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from planner.cluster import Route
from planner.costs.communication import all_to_all_s, ring_all_reduce_s, ring_pass_s
from planner.costs.model import CostModel
from planner.costs.stage import CONTEXT_BACKWARD_PASSES, EXPERT_EXCHANGES
from planner.joint import levels_of, spreads_experts
from planner.options import Level, Objective, Replication, SearchModel, SearchOptions
from planner.problem import Problem
from planner.registry import Registry
from planner.schedules import SCHEDULES, Placement
from planner.workload import Recomputation, ReplicaMode

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BoundQuery:
    """Over which plans a bound must hold: every partition, placement, schedule and degree at these batches.

    `batches` are (microbatch size, number of microbatches). Device groups have `tensor * context` devices. No bound on
    the iteration need exceed `iteration_upper_s`, what a known plan takes. When `expired()` a bound may give up.
    `search_model` lets bounds use what only that model counts; without it they hold for all. `upper_s` is the value of
    a known plan in the objective's unit (seconds per sample), `limit_s` what all bounds together may spend: bounds that
    run a solver return None when it is 0. `seed` is for solvers. `searched_levels`: where they are not the workload's.
    """

    problem: Problem
    costs: CostModel
    objective: Objective
    batches: tuple[tuple[int, int], ...]
    replication: Replication
    replica_mode: ReplicaMode
    schedules: tuple[str, ...] = ("1f1b", "gpipe")
    iteration_upper_s: float = math.inf
    expired: Callable[[], bool] = lambda: False
    search_model: SearchModel | None = None
    upper_s: float = math.inf
    limit_s: float = 0.0
    seed: int = 0
    searched_levels: tuple[Level, ...] = ()

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """What stages may spend time on to save memory: the workload's choice unless several are searched."""
        return self.searched_levels or levels_of(self.problem.workload, SearchOptions())

    @cached_property
    def splits_backward(self) -> bool:
        """Whether a schedule of the query may put off weight gradients: only F and I then delay other stages."""
        return any(SCHEDULES[name].splits_backward for name in self.schedules)

    @cached_property
    def virtual(self) -> bool:
        """Whether a schedule of the query may give a device group several stages."""
        return any(SCHEDULES[name].placement is not Placement.LINE for name in self.schedules)

    @cached_property
    def groups(self) -> dict[str, int]:
        """Device type -> number of device groups that it can form."""
        size = self.problem.workload.tensor * self.problem.workload.context
        counts = Counter(d.type for d in self.problem.cluster.devices if d.type in self.problem.profile_of)
        return {kind: count // size for kind, count in counts.items() if count >= size}

    def degrees(self, microbatch_size: int, num_microbatches: int) -> list[int]:
        """Every replication degree that a plan may use at this batch."""
        most = 1 if self.replication is Replication.NONE else max(1, sum(self.groups.values()))
        dealt = self.replica_mode is ReplicaMode.DEALT
        degrees = [d for d in range(1, most + 1) if (d <= num_microbatches if dealt else microbatch_size % d == 0)]
        return [d for d in degrees if spreads_experts(self.problem.workload, self.replica_mode, d)]

    def passes(self, microbatch_size: int, degree: int) -> list[list[float]]:
        """Per usable device type: forward plus backward seconds of every layer on one of `degree` replicas."""
        both = self.both_passes(microbatch_size, degree)
        return [[f + b for f, b in zip(forward, backward, strict=True)] for forward, backward in both]

    def both_passes(self, microbatch_size: int, degree: int) -> list[tuple[list[float], list[float]]]:
        """Per usable device type: forward and backward seconds of every layer, the latter with its recomputation."""
        key = ("both_passes", *self._asked, microbatch_size, degree)
        return self.costs.remember(key, lambda: self._both_passes(microbatch_size, degree))

    @property
    def _asked(self) -> tuple[object, ...]:
        """What least seconds depend on, beside the batch."""
        work = self.problem.workload
        return (work.tensor, work.context, work.expert, self.levels, self.replica_mode, self.replication)

    def remember(self, name: str, batch: tuple[int, int], make: Callable[[], T]) -> T:
        """What `make` returned for this batch and what the query asks the first time."""
        return self.costs.remember((name, *self._asked, *batch), make)

    def _both_passes(self, microbatch_size: int, degree: int) -> list[tuple[list[float], list[float]]]:
        split = self.replica_mode is ReplicaMode.SPLIT
        samples = microbatch_size / ((degree if split else 1) * self.problem.workload.context)
        training, runs = self.problem.training, self.problem.index.runs_backward
        again = training is not None and all(level.recomputation is Recomputation.FULL for level in self.levels)
        found = []
        for kind in self.groups:  # a stage may mix types: its slowest is no faster than the fastest of all
            prices = self.costs.layer_prices(kind, samples, self.problem.workload.tensor)
            once, moved = self._collectives(kind, samples), self._ring_passes(kind, samples)
            forward = [f + s + m for f, s, m in zip(prices.forward_s, once, moved, strict=True)]
            backward = [
                b + (training is not None and run) * (s + CONTEXT_BACKWARD_PASSES * m) + (again and run) * f
                for b, s, m, f, run in zip(prices.backward_s, once, moved, forward, runs, strict=True)
            ]
            found.append((forward, backward))
        return found

    def _collectives(self, kind: str, samples: float) -> list[float]:
        """Per layer, seconds of tensor collectives and of experts' rows in one pass over the widest links, without
        latency. `samples` are those of one tensor-parallel group."""
        work, width = self.problem.workload, self._widest[kind]
        return [
            ring_all_reduce_s(samples * layer.tensor_collective_bytes_per_sample, work.tensor, width)
            + EXPERT_EXCHANGES
            * all_to_all_s(samples * layer.expert_dispatch_bytes_per_sample / work.tensor, work.expert, width)
            for layer in self.problem.index.layers
        ]

    def _ring_passes(self, kind: str, samples: float) -> list[float]:
        """Per layer, seconds in which keys and values go around once, likewise."""
        work, width = self.problem.workload, self._widest[kind]
        whole = samples * work.context / work.tensor
        return [
            ring_pass_s(whole * layer.context_bytes_per_sample, work.context, width)
            for layer in self.problem.index.layers
        ]

    @cached_property
    def _widest(self) -> dict[str, Route | None]:
        """Device type -> a route as wide as the widest link of the cluster that ends at a device of the type."""
        work = self.problem.workload
        if work.tensor * work.context * work.expert == 1:
            return dict.fromkeys(self.groups)
        ends = self.costs.remember(("widest",), self._widest_ends)
        return {
            kind: Route(bandwidth_bytes_per_s=ends[kind], latency_s=0.0) if ends.get(kind) else None
            for kind in self.groups
        }

    def _widest_ends(self) -> dict[str, float]:
        ends: dict[str, float] = {}
        for link in self.problem.cluster.links:
            for end in (link.a, link.b):
                device = self.problem.devices.get(end)
                if device is not None:
                    ends[device.type] = max(ends.get(device.type, 0.0), link.bandwidth_bytes_per_s)
        return ends


class Bound(Protocol):
    """One lower bound. Each method returns seconds that no plan of the query undercuts, or None.

    `objective_s` bounds the search models' closed forms (all of them: they only add to the terms used), `iteration_s`
    the simulated time of one iteration.
    """

    name: str

    def objective_s(self, query: BoundQuery) -> float | None: ...

    def iteration_s(self, query: BoundQuery) -> float | None: ...


BOUNDS: Registry[Bound] = Registry("bound", "planner.bounds")

MARGIN = 1e-12
"""Bounds are lowered by this factor: sums in another order may round differently."""


def lowered(seconds: float) -> float:
    """`seconds` minus the rounding margin."""
    return seconds * (1.0 - MARGIN)
