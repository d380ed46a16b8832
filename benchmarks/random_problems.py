"""Random bottleneck problems small enough to price every plan, for `benchmarks.agreement` and its test.

Each mixes at random what exact methods have to get right: layers that must share a stage, memory limits, CPUs that pay
no transfers, layers that a device type cannot run, layers without work, tensors with several readers, fixed numbers of
stages, inference and training. Seconds are small integers in half of the problems, so that plans tie, and arbitrary
floats in the others. A seed is a problem.

Left out is what the recurrence of `ideal_dp` leaves out, so that it must be exact: latency, workspace, activations of
several microbatches in flight, and overhead of stages that only partly run backward.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from planner.cluster import Cluster, Device, DeviceKind, DeviceType, Link
from planner.graph import Edge, GraphIndex, Layer, LayerGraph
from planner.options import Objective, Replication, SearchModel, SearchOptions
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.workload import Communication, Inference, Training

MOST_LAYERS = 9
MOST_DEVICES = 4
CPU = "cpu"
WORD = 4
"""Bytes of one parameter: sizes are whole ones, so that nothing is rounded."""


@dataclass(frozen=True, kw_only=True)
class RandomProblem:
    """A problem, what to search for, and which of the features it has."""

    problem: Problem
    options: SearchOptions
    features: tuple[str, ...]


def random_problem(seed: int, *, most_layers: int = MOST_LAYERS, few: Callable[[RandomProblem], bool]) -> RandomProblem:
    """The problem of this seed; edges are added to it until `few` says that it has few enough plans."""
    draw = _Draw(seed, most_layers)
    while True:
        made = draw.made()
        missing = [pair for pair in itertools.pairwise(range(draw.count)) if pair not in draw.arcs]
        if not missing or few(made):
            return made
        draw.arcs.append(draw.random.choice(missing))


class _Draw:
    """All random choices of one problem, in a fixed order; `made` builds it with the `arcs` of that moment."""

    def __init__(self, seed: int, most_layers: int) -> None:
        self.random = draw = random.Random(seed)
        self.count = max(draw.randint(2, most_layers) for _ in range(2))
        density = draw.choice((0.15, 0.3, 0.5))
        self.arcs = [p for p in itertools.combinations(range(self.count), 2) if draw.random() < density]
        self.kinds = ["gpu"] * draw.randint(1, MOST_DEVICES - 1)
        self.kinds += draw.choice(([], [CPU], [CPU], ["old"])) * draw.randint(1, MOST_DEVICES - len(self.kinds))
        self.trains, self.whole = draw.random() < 0.4, draw.random() < 0.5
        self.memory, self.unsupported = draw.random() < 0.5, draw.random() < 0.4
        self.most_bytes = draw.choice((2, 6, 20)) * WORD
        self.sizes = [draw.choice((0, 1, 4, 9)) * WORD if self.memory else 0 for _ in range(self.count)]
        self.tensors = [draw.randint(0, self.most_bytes // WORD) * WORD for _ in range(self.count)]
        self.costs = self._costs()
        self.overheads = {kind: draw.choice((0.0, 0.0, 1.0)) for kind in self.costs}
        self.limits = {kind: draw.randint(8, 40) * WORD * draw.choice((1, 2)) for kind in self.costs}
        self.colocated = self._colocated()
        self.batch = draw.choice((1, 2, 3))
        self.num_stages = draw.choice((None, None, None, 2, 3))
        self.seed = seed

    def made(self) -> RandomProblem:
        """The problem with the edges of now."""
        layers = tuple(Layer(id=f"L{i}", parameter_bytes=size) for i, size in enumerate(self.sizes))
        edges = tuple(
            Edge(source=f"L{a}", target=f"L{b}", bytes_per_sample=self.tensors[a], has_gradient=bool(a % 4))
            for a, b in self.arcs
        )
        graph = LayerGraph(layers=layers, edges=edges, colocated=self.colocated)
        whole = all(GraphIndex(graph).runs_backward)
        problem = Problem(
            graph=graph,
            profiles=tuple(self._profile(kind, overhead=whole or not self.trains) for kind in self.costs),
            cluster=self._cluster(),
            workload=self._work(),
        )
        most = min(self.count, len(self.kinds))
        options = SearchOptions(
            objective=Objective.THROUGHPUT,
            search_model=SearchModel.BLOCKING,
            replication=Replication.NONE,
            num_stages=self.num_stages and min(self.num_stages, most),
            seed=self.seed % 1000,
        )
        return RandomProblem(problem=problem, options=options, features=self._features())

    def _costs(self) -> dict[str, dict[str, LayerCost]]:
        """Per device type, the layers that it can run; every layer runs on one at least."""
        draw, able = self.random, 0.8 if self.unsupported else 1.1
        names = [f"L{i}" for i in range(self.count)]
        costs = {
            kind: {name: self._cost() for name in names if draw.random() < able} for kind in sorted(set(self.kinds))
        }
        for name in names:
            if not any(name in able_to for able_to in costs.values()):
                costs[draw.choice(sorted(costs))][name] = self._cost()
        return costs

    def _cost(self) -> LayerCost:
        forward_s = self.random.choice((0, 0, 1, 2, 5, 9)) if self.whole else self.random.uniform(0, 5)
        if self.random.random() < 0.15:
            forward_s = 0
        return LayerCost(
            forward_s=float(forward_s), backward_s=2.0 * forward_s, optimizer_s=self.random.choice((0.0, 1.0))
        )

    def _colocated(self) -> tuple[tuple[str, ...], ...]:
        """Up to two groups; they may overlap."""
        draw, names = self.random, [f"L{i}" for i in range(self.count)]
        groups = draw.choice((0, 0, 1, 2)) if self.count > 2 else 0
        return tuple(tuple(sorted(draw.sample(names, draw.choice((2, 2, 3))))) for _ in range(groups))

    def _profile(self, kind: str, *, overhead: bool) -> Profile:
        table = CostTable(microbatch_size=1, layers=self.costs[kind])
        return Profile(device_type=kind, tables=(table,), action_overhead_s=self.overheads[kind] * overhead)

    def _cluster(self) -> Cluster:
        types = [
            DeviceType(
                name=kind,
                memory_bytes=self.limits[kind] if self.memory else 2**40,
                kind=DeviceKind.CPU if kind == CPU else DeviceKind.ACCELERATOR,
            )
            for kind in self.costs
        ]
        names = [f"{kind}:{n}" for n, kind in enumerate(self.kinds)]
        devices = (Device(id=name, type=kind) for name, kind in zip(names, self.kinds, strict=True))
        links = (Link(a=name, b="bus", bandwidth_bytes_per_s=float(WORD), shared=False) for name in names)
        return Cluster(device_types=tuple(types), devices=tuple(devices), links=tuple(links) if len(names) > 1 else ())

    def _work(self) -> Training | Inference:
        kind = Training if self.trains else Inference
        return kind(global_batch_size=self.batch, microbatch_size=1, communication=Communication.BLOCKING)

    def _features(self) -> tuple[str, ...]:
        supported = [set(costs) for costs in self.costs.values()]
        has = {
            "training": self.trains,
            "memory limit": self.memory,
            "colocation": bool(self.colocated),
            "CPU": CPU in self.kinds,
            "two accelerators": "old" in self.kinds,
            "unsupported pairs": any(len(names) < self.count for names in supported),
            "zero-work layers": any(not cost.forward_s for costs in self.costs.values() for cost in costs.values()),
            "fixed stages": self.num_stages is not None,
        }
        return tuple(name for name, there in has.items() if there)
