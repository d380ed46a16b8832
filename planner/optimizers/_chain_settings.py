"""The settings that `chain_dp` searches one by one, and what no plan of a setting can undercut.

    floor = P + (M - 1) max( heaviest load, P' / most stages, G / groups )        (the same without P for throughput)

P sums the passes of all layers at the best allowed degree for each, P' their loads (passes, divided where whole
microbatches are dealt) and G their loads times the groups that they keep busy. Sound: stages only add overheads,
transfers, latencies and tails, the period is no less than the average load over stages or over groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.bounds.base import BoundQuery
from planner.optimizers.base import SearchContext
from planner.options import Objective
from planner.workload import ReplicaMode


@dataclass(frozen=True, slots=True)
class Setting:
    """A (microbatch size, number of microbatches), the degrees that stages may have, and its floor.

    `passes_s`: what the passes of one microbatch take at least. `floor_s`: no plan has a smaller objective.
    """

    batch: tuple[int, int]
    degrees: tuple[int, ...]
    passes_s: float
    floor_s: float


def setting_of(query: BoundQuery, batch: tuple[int, int], degrees: tuple[int, ...], num_stages: int | None) -> Setting:
    """The setting with its floor. O(layers x degrees)."""
    size, count = batch
    dealt = query.replica_mode is ReplicaMode.DEALT
    least = {degree: _least_passes(query, size, degree) for degree in degrees}
    passes = [min(row) for row in zip(*least.values(), strict=True)]
    shares = [(degree, degree if dealt else 1) for degree in degrees]
    loads = [min(row) for row in zip(*([p / share for p in least[d]] for d, share in shares), strict=True)]
    kept_busy = [min(row) for row in zip(*([d * p / share for p in least[d]] for d, share in shares), strict=True)]
    groups = sum(query.groups.values())
    most = min(len(loads), groups // min(degrees), num_stages or groups)
    period = max(max(loads), math.fsum(loads) / max(1, most), math.fsum(kept_busy) / groups)
    total = math.fsum(passes)
    if query.objective is Objective.THROUGHPUT:
        return Setting(batch, degrees, total, period / size)
    return Setting(batch, degrees, total, total + (count - 1) * period)


def asked_of(context: SearchContext) -> BoundQuery:
    """What the bounds ask of the search's problem."""
    return BoundQuery(
        problem=context.problem,
        costs=context.costs,
        objective=context.options.objective,
        batches=tuple(context.batches()),
        replication=context.options.replication,
        replica_mode=context.options.replica_mode,
        searched_levels=context.levels,
    )


def _least_passes(query: BoundQuery, size: int, degree: int) -> list[float]:
    """Per layer, both passes on the quickest device type."""
    return [min(row) for row in zip(*query.passes(size, degree), strict=True)]
