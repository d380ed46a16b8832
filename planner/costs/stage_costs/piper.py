"""`piper`: the model of Piper (Tarnawski, Narayanan, Phanishayee 2021, `algo.cpp`).

A stage S that runs on d replicas of t devices each, with N microbatches per batch and bandwidth bw, takes per sample

    seconds(S) = ( sum over v in S of p_v + C(S) / bw ) / d  +  4 (d - 1) / (d N) * sum over v in S of w_v / bw
    C(S)       = sum over the edges that leave or enter S of 2 (c_e + sync_e)
    memory(S)  = sum over v in S of ( A_v y + B_v )  <=  M,        y = ceil( D / d )

D is the sum of the replication degrees of S and of all stages after it: y microbatches are in flight (1F1B). Time p,
weights w, memory A and B of a layer depend on t and on whether it recomputes; sync_e is what tensor parallelism adds at
the layer's end of a cut edge. Edges are counted one by one, also where several carry one tensor. d divides N, the
degrees sum up to at most N, the devices d t to at most K.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.pipedream import PASSES, SYNC_TRAFFIC
from planner.ideals import Groups, bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way to run a layer: seconds per sample, bytes kept per microbatch in flight (A) and once (B)."""

    compute_s: float
    kept_bytes: float
    fixed_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeCost:
    """A layer at one tensor degree: its runs (plain first; a second one recomputes), bytes of its weights, and the
    bytes that synchronise it with its group where the edge from or to another layer is cut."""

    runs: tuple[Run, ...]
    weight_bytes: float
    sync_from: Mapping[int, float] = field(default_factory=dict)
    sync_to: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperEdge:
    """`num_bytes` per microbatch from layer group `source` to `target`."""

    source: int
    target: int
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperCost:
    """The model for one graph on `num_devices` equal devices. `layers[g]` maps tensor degree to the group's costs."""

    groups: Groups
    layers: Sequence[Mapping[int, DegreeCost]]
    edges: tuple[PiperEdge, ...]
    bandwidth_bytes_per_s: float
    num_microbatches: int
    num_devices: int
    memory_bytes: float
    name: str = "piper"

    def seconds(self, stage: StageShape) -> float:
        """Seconds per sample; infinite without such degrees or where the memory does not suffice."""
        members = list(bits(stage.layers))
        if self.num_microbatches % stage.degree or any(stage.tensor not in self.layers[g] for g in members):
            return math.inf
        if self.memory(stage) > self.memory_bytes:
            return math.inf
        compute = math.fsum(run.compute_s for run in self._runs(stage))
        weights = math.fsum(self.layers[g][stage.tensor].weight_bytes for g in members)
        moved = self.cut_bytes(stage.layers, stage.tensor) / self.bandwidth_bytes_per_s
        return (compute + moved) / stage.degree + self.sync_s(weights, stage.degree)

    def memory(self, stage: StageShape) -> float:
        """Bytes on each device of the stage."""
        return math.fsum(run.kept_bytes * stage.in_flight + run.fixed_bytes for run in self._runs(stage))

    def cut_bytes(self, layers: int, tensor: int) -> float:
        """C(S): bytes over the cut edges, both passes."""
        return math.fsum(self.end_bytes(edge, layers, tensor) for edge in self.edges)

    def end_bytes(self, edge: PiperEdge, layers: int, tensor: int) -> float:
        """What one edge costs a stage: 0 unless exactly one of its ends is inside."""
        made, read = layers >> edge.source & 1, layers >> edge.target & 1
        if made == read:
            return 0.0
        if read:
            sync = self.layers[edge.target][tensor].sync_from.get(edge.source, 0.0)
        else:
            sync = self.layers[edge.source][tensor].sync_to.get(edge.target, 0.0)
        return PASSES * (edge.num_bytes + sync)

    def sync_s(self, weight_bytes: float, degree: int) -> float:
        """Seconds per sample in which the replicas exchange gradients."""
        traffic = SYNC_TRAFFIC * (degree - 1) * weight_bytes / degree / self.num_microbatches
        return traffic / self.bandwidth_bytes_per_s

    def degrees(self) -> list[int]:
        """Data degrees that a stage may have."""
        most = min(self.num_devices, self.num_microbatches)
        return [d for d in range(1, most + 1) if self.num_microbatches % d == 0]

    def tensors(self) -> list[int]:
        """Tensor degrees that some layer has."""
        return sorted({t for costs in self.layers for t in costs if t <= self.num_devices})

    def _runs(self, stage: StageShape) -> Iterable[Run]:
        for g in bits(stage.layers):
            yield self.layers[g][stage.tensor].runs[stage.recomputed >> g & 1]
