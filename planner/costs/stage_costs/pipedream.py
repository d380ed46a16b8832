"""`pipedream`: the model of PipeDream's open optimizer (Narayanan et al. 2019, `optimizer_graph_hierarchical.py`).

Level l joins m_l units of the level below with bandwidth bw_l; a unit of level 0 is a device. A stage S that m units
share, with w(S) its bytes of weights and T its seconds on one unit, takes

    load(S, m)    = (T + 4 (m - 1) w(S) / (bw_l m) [ / m_{l-1} in the first stage of its pipeline ]) / m
    transfer(I,m) = 2 a(I) / (bw_l m)          a(I): bytes of the tensors that cross from ideal I to the rest

T is the stage's compute on level 0, above that the bottleneck of the best pipeline of level l - 1 within the unit. The
period of a pipeline is its largest load and, with activation transfers counted, the largest transfer: every stage but
the first pays at both its boundaries, the last boundary of the whole model apart.

Where the code differs from the paper (it adds the synchronisation instead of overlapping it, divides it by the number
of units below for the first stage only, and lets the first stage send for nothing), this follows the code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.hierarchy import Level
from planner.ideals import Groups, bits

Number = Any
"""A float, or a numpy array of them."""
SYNC_TRAFFIC = 4
"""Times (m - 1) / m of the weights that cross the links: gradients out and weights back, to a parameter server, each
counted in both directions."""
PASSES = 2
"""Activations forward, gradients backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingTensor:
    """A tensor of `num_bytes` per minibatch made by group `source` and read by the groups in `targets` (a bitset)."""

    source: int
    targets: int
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeDreamCost:
    """The model for one graph and one hierarchy. Seconds and bytes are per layer group and minibatch."""

    groups: Groups
    work_s: Sequence[float]
    weight_bytes: Sequence[float]
    tensors: tuple[CrossingTensor, ...]
    levels: tuple[Level, ...]
    activation_transfers: bool = True
    name: str = "pipedream"

    def seconds(self, stage: StageShape) -> float:
        """Load and transfers of one stage."""
        inner = self.compute_s(stage.layers) if stage.inner_s is None else stage.inner_s
        load = float(self.load_s(inner, self.weights(stage.layers), stage.degree, stage.level, first=stage.first))
        if stage.first:
            return load
        ends = (stage.before, stage.before | stage.layers)
        return max(load, *(float(self.transfer_s(self.crossing_bytes(end), stage.degree, stage.level)) for end in ends))

    def compute_s(self, layers: int) -> float:
        """Forward and backward seconds of some groups on one device."""
        return math.fsum(self.work_s[g] for g in bits(layers))

    def weights(self, layers: int) -> float:
        """Bytes of their weights."""
        return math.fsum(self.weight_bytes[g] for g in bits(layers))

    def crossing_bytes(self, ideal: int) -> float:
        """a(I): bytes of the distinct tensors made inside and read outside of an ideal; 0 for the whole model."""
        return math.fsum(t.num_bytes for t in self.tensors if ideal >> t.source & 1 and t.targets & ~ideal)

    def load_s(self, inner_s: Number, weight_bytes: Number, degree: int, level: int, *, first: bool) -> Number:
        """Compute and weight synchronisation of a stage, divided among its replicas."""
        below = self.levels[level - 1].count if level and first else 1
        bandwidth = self.levels[level].bandwidth_bytes_per_s
        sync = SYNC_TRAFFIC * (degree - 1) * weight_bytes / (bandwidth * degree) / below
        return (inner_s + sync) / degree

    def transfer_s(self, num_bytes: Number, degree: int, level: int) -> Number:
        """Activations and gradients over one boundary, shared by the stage's replicas; 0 without transfers."""
        if not self.activation_transfers:
            return 0.0 * num_bytes
        return PASSES * num_bytes / (self.levels[level].bandwidth_bytes_per_s * degree)
