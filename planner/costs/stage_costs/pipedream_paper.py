"""`pipedream_paper`: the steady state of PipeDream as its paper states it (Narayanan et al. 2019, section 3.1).

Compute, weight synchronisation and transfers of different minibatches overlap, so that a stage on r replicas takes the
largest of three times per minibatch:

    seconds(S, r) = max( T(S) / r,   2 (r - 1) / r * w(S) / bw,   2 a(I) / (bw r) )

with T its compute on one device, w its weights, and I the layers before it: a(I) bytes come in and their gradients go
back over the links of its r replicas. Its open program adds the first two instead (`pipedream`).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.pipedream import PASSES, PipeDreamCost

ALL_REDUCE_TRAFFIC = 2
"""Times (r - 1) / r of the weights that every replica sends: reduce-scatter and all-gather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeDreamPaperCost(PipeDreamCost):
    """The model on one level: devices that are joined alike."""

    name: str = "pipedream_paper"

    def seconds(self, stage: StageShape) -> float:
        """The slowest of compute, synchronisation and what comes in."""
        r, bandwidth = stage.degree, self.levels[stage.level].bandwidth_bytes_per_s
        compute = self.compute_s(stage.layers) / r
        sync = ALL_REDUCE_TRAFFIC * (r - 1) / r * self.weights(stage.layers) / bandwidth
        return max(compute, sync, PASSES * self.crossing_bytes(stage.before) / (bandwidth * r))
