"""`piper_dp`: Piper's search (Tarnawski, Narayanan, Phanishayee 2021), exact in the `piper` model.

Stages are taken off the end of the model, because the memory of a stage depends on the replication degrees D that
follow it. For a cap U on the seconds per sample let

    k[I, D] = fewest devices on which the layers outside ideal I run within U, with degrees that sum up to D
            = min over ideals J > I, degrees d, t with seconds(J \\ I, d, t, y = ceil(D / d)) <= U
              of k[J, D - d] + d t

U is feasible when some k[empty, D] is at most the number of devices; bisection, ended by a cap just below a plan's own
value, finds the smallest U. The paper fills a table over (ideal, devices, D) instead; here one dimension less is
filled some thirty times. O(ideals^2 * degrees * tensor degrees * D) steps in numpy per cap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.piper import PiperCost
from planner.errors import LimitError
from planner.ideals import bits, enumerate_ideals
from planner.optimizers._recompute_choice import StageRuns

Array = NDArray[Any]
MAX_IDEALS = 2_000
MAX_CELLS = 2 * 10**8
"""Largest table of compute seconds (stages x tensor degrees x microbatches in flight)."""
CLOSE = 1 + 1e-6
"""Once the caps are this close, only caps just below the best value are tried."""
STRICTLY = 1 - 1e-9
ENDLESS_S = 1e100
"""A cap that every stage keeps that fits into memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreePlan:
    """Stages in pipeline order and the largest seconds per sample among them.

    `bound_s` is a lower bound over all plans: equal to `value_s` up to rounding where every recomputation choice was
    exact.
    """

    stages: tuple[StageShape, ...]
    value_s: float
    bound_s: float

    @property
    def num_devices(self) -> int:
        """Devices that the stages use."""
        return sum(stage.degree * stage.tensor for stage in self.stages)


def piper_dp(cost: PiperCost) -> DegreePlan | None:
    """The best plan, None when nothing fits into memory. LimitError when the graph has too many ideals."""
    table = _Table(cost, enumerate_ideals(cost.groups, MAX_IDEALS))
    stages = table.search(table.found)
    if stages is None:
        return None
    value = max(cost.seconds(stage) for stage in stages)
    return DegreePlan(stages=stages, value_s=value, bound_s=value * STRICTLY if table.exact else table.bound())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """All stages between one ideal and larger ones at one tensor degree, a row each.

    `ends` are the columns of the larger ideals; `compute` and `bound` are (rows, y) seconds on one group.
    """

    tensor: int
    ends: Array
    moved_s: Array
    weight_bytes: Array
    compute: Array
    bound: Array


class _Table:
    """k[I, D], and the stages that it is made from."""

    def __init__(self, cost: PiperCost, ideals: Sequence[int]) -> None:
        self.cost, self.ideals = cost, ideals
        self.most = min(cost.num_devices, cost.num_microbatches)
        self.degrees = cost.degrees()
        cells = len(ideals) ** 2 // 2 * len(cost.tensors()) * (self.most + 1)
        if cells > MAX_CELLS:
            raise LimitError(
                f"{len(ideals)} ideals and {self.most} microbatches in flight make {cells} table cells (limit "
                f"{MAX_CELLS}): use fewer devices or coarser layers"
            )
        self.after = [self._stages_after(i) for i in range(len(ideals))]
        self.exact = all(s.compute is s.bound for stages in self.after for s in stages)

    found = "compute"
    least = "bound"

    def search(self, which: str) -> tuple[StageShape, ...] | None:
        """The stages of the best plan, with compute as found or its lower bound."""
        low, high, cap, best = self._floor(), ENDLESS_S, ENDLESS_S, None
        while low < high * STRICTLY:
            fewest = self._fewest(cap, which)
            end = self._end(fewest)
            if end is not None:
                best, high = self._trace(fewest, end, cap, which)
            elif cap >= high * STRICTLY:
                break
            else:
                low = cap
            cap = high * STRICTLY if high <= low * CLOSE else math.sqrt(low * high)
        return best

    def bound(self) -> float:
        """The smallest cap that plans meet when recomputation is allowed to be partial."""
        low, high = self._floor(), math.inf
        cap = max(self.cost.seconds(s) for s in self.search(self.found) or ())
        high = cap
        while low < high * STRICTLY:
            cap = math.sqrt(low * high)
            low, high = (low, cap) if self._end(self._fewest(cap, self.least)) is not None else (cap, high)
        return low

    def _floor(self) -> float:
        """All layers, at their cheapest degree, spread over all devices; never 0."""
        work = math.fsum(min(t * entry.runs[0].compute_s for t, entry in costs.items()) for costs in self.cost.layers)
        return max(work / self.cost.num_devices, 1e-12) * STRICTLY

    def _fewest(self, cap: float, which: str) -> Array:
        """k[I, D] under the cap, filled from the end."""
        fewest = np.full((len(self.ideals), self.most + 1), math.inf)
        fewest[-1, 0] = 0
        for i in range(len(self.ideals) - 2, -1, -1):
            for stages in self.after[i]:
                self._relax(fewest, i, stages, cap, which)
        return fewest

    def _relax(self, fewest: Array, i: int, stages: _Stages, cap: float, which: str) -> None:
        """Improve row i by every degree of these stages; a degree that always works makes larger ones useless."""
        rows = np.flatnonzero(np.isfinite(fewest[stages.ends].min(axis=1)))
        for degree in self.degrees:
            devices = degree * stages.tensor
            if devices > self.cost.num_devices or not rows.size:
                return
            most = degree * self._most_in_flight(stages, rows, degree, cap, which)
            some = most > 0
            totals = np.arange(degree, self.most + 1)
            reached = fewest[stages.ends[rows[some]], : len(totals)] + devices
            reached[totals[None, :] > most[some][:, None]] = math.inf
            np.minimum(fewest[i, degree:], reached.min(axis=0, initial=math.inf), out=fewest[i, degree:])
            rows = rows[most < self.most]

    def _most_in_flight(self, stages: _Stages, rows: Array, degree: int, cap: float, which: str) -> Array:
        """Per row: the largest y at which the stage stays within the cap; 0 where it never does."""
        budget = degree * (cap - self._sync_s(stages.weight_bytes[rows], degree)) - stages.moved_s[rows]
        compute = getattr(stages, which)[rows, 1:]
        return np.asarray((compute <= budget[:, None]).sum(axis=1))

    def _sync_s(self, weight_bytes: Array, degree: int) -> Array:
        return np.asarray(weight_bytes * self.cost.sync_s(1.0, degree))

    def _end(self, fewest: Array) -> int | None:
        """The smallest sum of degrees at which everything runs on the devices."""
        hits = np.flatnonzero(fewest[0] <= self.cost.num_devices)
        return int(hits[0]) if hits.size else None

    def _trace(self, fewest: Array, total: int, cap: float, which: str) -> tuple[tuple[StageShape, ...], float]:
        """The stages behind k[empty, total] and the largest seconds among them."""
        i, made = 0, list[StageShape]()
        while i < len(self.ideals) - 1:
            stage, end = self._origin(fewest, i, total, cap, which)
            made.append(stage)
            i, total = end, total - stage.degree
        return tuple(made), max(self.cost.seconds(stage) for stage in made)

    def _origin(self, fewest: Array, i: int, total: int, cap: float, which: str) -> tuple[StageShape, int]:
        """The first stage of the plan behind k[i, total], and the column where it ends."""
        for stages in self.after[i]:
            for degree in (d for d in self.degrees if d <= total):
                before = fewest[stages.ends, total - degree] + degree * stages.tensor
                rows = np.flatnonzero(np.isfinite(before) & (before == fewest[i, total]))
                most = degree * self._most_in_flight(stages, rows, degree, cap, which)
                for row in rows[most >= total]:
                    return self._shape(i, stages, int(row), degree, total), int(stages.ends[row])
        raise AssertionError("a table entry has no origin")

    def _shape(self, i: int, stages: _Stages, row: int, degree: int, total: int) -> StageShape:
        layers = self.ideals[stages.ends[row]] & ~self.ideals[i]
        in_flight = -(-total // degree)
        return StageShape(
            layers=layers,
            before=self.ideals[i],
            degree=degree,
            tensor=stages.tensor,
            first=i == 0,
            in_flight=in_flight,
            recomputed=self._runs(layers, stages.tensor).chosen(in_flight),
        )

    def _runs(self, layers: int, tensor: int) -> StageRuns:
        members = [(g, self.cost.layers[g][tensor].runs) for g in bits(layers)]
        return StageRuns(members, self.cost.memory_bytes)

    def _stages_after(self, i: int) -> list[_Stages]:
        """All stages that begin at ideal i, per tensor degree."""
        ends = [j for j in range(i + 1, len(self.ideals)) if not self.ideals[i] & ~self.ideals[j]]
        found = [self._at_degree(i, ends, t) for t in self.cost.tensors()]
        return [stages for stages in found if len(stages.ends)]

    def _at_degree(self, i: int, ends: list[int], tensor: int) -> _Stages:
        """Those whose layers all have this tensor degree."""
        cost, runnable = self.cost, sum(1 << g for g, costs in enumerate(self.cost.layers) if tensor in costs)
        parts = {j: self.ideals[j] & ~self.ideals[i] for j in ends}
        kept = [j for j in ends if not parts[j] & ~runnable]
        pairs = [self._runs(parts[j], tensor).least_compute(self.most) for j in kept]
        compute = np.array([found for found, _ in pairs]).reshape(len(kept), self.most + 1)
        exact = all(found is bound for found, bound in pairs)
        return _Stages(
            tensor=tensor,
            ends=np.array(kept, dtype=np.int64),
            moved_s=np.array([cost.cut_bytes(parts[j], tensor) for j in kept]) / cost.bandwidth_bytes_per_s,
            weight_bytes=np.array(
                [math.fsum(cost.layers[g][tensor].weight_bytes for g in bits(parts[j])) for j in kept]
            ),
            compute=compute,
            bound=compute if exact else np.array([bound for _, bound in pairs]),
        )
