"""From a bound on the bottleneck of an instance to a bound on the plans of a query."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from planner.bounds._budget import Budget
from planner.bounds.base import BoundQuery, lowered
from planner.cluster import Network
from planner.options import Objective, Replication, SearchModel
from planner.partition.contraction import contract
from planner.partition.instance import BottleneckInstance, bottleneck_instance
from planner.workload import ReplicaMode

Core = Callable[[BottleneckInstance, float, Budget], float | None]
"""(instance, upper, budget) -> a lower bound on the bottleneck, at most `upper`, or None. Seconds per microbatch."""

MAX_LAYERS = 8_000
"""Larger graphs get no such bound: contracting them takes seconds."""
MAX_DEVICES = 512
"""Larger clusters are not checked for equal routes, and get no such bound."""


def throughput_bound(query: BoundQuery, core: Core, *, cheap: bool = False) -> float | None:
    """The least over the query's batches of `core`, in seconds per sample; None where the instance says nothing.

    Instances stand for single devices in the `blocking` model. Tied parameters, recomputation, latency and memory only
    add to the loads that they count.
    """
    if not applies(query) or (not cheap and query.limit_s <= 0):
        return None
    values = [_of_batch(query, batch, core) for batch in query.batches]
    return min((value for value in values if value is not None), default=None) if None not in values else None


def applies(query: BoundQuery) -> bool:
    """Whether every plan of the query is a partition of the instance, with at least its loads."""
    if query.objective is not Objective.THROUGHPUT or query.search_model is not SearchModel.BLOCKING:
        return False
    if len(query.problem.index) > MAX_LAYERS:
        return False
    work = query.problem.workload
    return work.tensor * work.context * work.expert == 1 and _unreplicated(query) and _equal_routes(query)


def _of_batch(query: BoundQuery, batch: tuple[int, int], core: Core) -> float | None:
    instance = bottleneck_instance(query.problem, query.costs, batch)
    upper = query.upper_s * batch[0]
    if upper <= 0:
        return None
    below = upper if math.isfinite(upper) else None
    smaller = contract(instance, below=below, keep_memory=False).instance
    budget = Budget(query.limit_s / len(query.batches), seed=query.seed)
    value = core(smaller, upper, budget)
    return None if value is None else lowered(min(value, upper) / batch[0])


def _unreplicated(query: BoundQuery) -> bool:
    if query.replication is Replication.NONE:
        return True
    split = query.replica_mode is ReplicaMode.SPLIT
    return all((size if split else count) == 1 for size, count in query.batches)


def _equal_routes(query: BoundQuery) -> bool:
    """Whether all devices are joined by routes of one bandwidth, so that the instance's transfers are the plan's."""
    problem = query.problem
    ids = [device.id for device in problem.cluster.devices if device.type in problem.profile_of]
    if len(ids) > MAX_DEVICES:
        return False
    network = problem.network
    one_of_each = [first for twins in _twins(network, ids) for first in twins[:2]]
    routes = [network.route(a, b) for n, a in enumerate(one_of_each) for b in one_of_each[n + 1 :]]
    widths = [0.0 if route is None else route.bandwidth_bytes_per_s for route in routes]
    return all(a == b for a, b in pairwise(widths))


def _twins(network: Network, ids: Sequence[str]) -> list[list[str]]:
    """The devices, those that hang on the network alike together."""
    found: dict[int, list[str]] = {}
    for device in ids:
        found.setdefault(network.twins[device], []).append(device)
    return list(found.values())
