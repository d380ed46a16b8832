"""Whether it matters on which devices a stage is placed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

from planner.problem import Problem

MAX_KINDS_COMPARED = 512


def unlike_devices(problem: Problem) -> list[str]:
    """Two of all devices that hang on the network alike: every kind of route that there is joins two of these."""
    found: dict[int, list[str]] = {}
    for device in problem.devices:
        found.setdefault(problem.network.twins[device], []).append(device)
    return [device for twins in found.values() for device in twins[:2]]


def uniform_links(problem: Problem, devices: Sequence[str] = ()) -> bool:
    """Whether every pair of these devices (all of them) has the same route, so that placement does not matter.

    Devices with equal links to the same switches are looked at once; more than 512 kinds count as not uniform.
    """
    network, kinds = problem.network, dict[int, list[str]]()
    for device in devices or problem.devices:
        kinds.setdefault(network.twins[device], []).append(device)
    if len(kinds) > MAX_KINDS_COMPARED:
        return False
    firsts = [members[0] for members in kinds.values()]
    pairs = [(members[0], members[1]) for members in kinds.values() if len(members) > 1]
    prices = set()
    for a, b in chain(pairs, combinations(firsts, 2)):
        route = network.route(a, b)
        prices.add(None if route is None else (route.bandwidth_bytes_per_s, route.latency_s))
        if len(prices) > 1:
            return False
    return True
