"""Transfers between stages and collectives inside them. `docs/cost-model.md` sections 3 and 4."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from planner.cluster import Route
from planner.costs.parts import Number
from planner.errors import InputError
from planner.problem import Problem

Group = tuple[str, ...]
"""The devices of one replica."""


def ring_all_reduce_s(num_bytes: Number, members: int, route: Route | None) -> Number:
    """Seconds of a ring all-reduce of `num_bytes` among `members`: 2 (n-1) steps of n-th parts (Patarasuk 2009)."""
    if members < 2 or route is None:
        return 0.0 * num_bytes
    steps = 2 * (members - 1)
    return (num_bytes > 0) * steps * route.latency_s + steps * num_bytes / (members * route.bandwidth_bytes_per_s)


def ring_gather_s(num_bytes: Number, members: int, route: Route | None) -> Number:
    """Seconds of a ring all-gather (or reduce-scatter) whose full size is `num_bytes`: half an all-reduce."""
    return ring_all_reduce_s(num_bytes, members, route) / 2


def all_to_all_s(num_bytes: Number, members: int, route: Route | None) -> Number:
    """Seconds in which each of `members` spreads `num_bytes` evenly over all: an (n-1)/n part leaves the device.

    One message per other member, one after the other.
    """
    if members < 2 or route is None:
        return 0.0 * num_bytes
    others = members - 1
    return (num_bytes > 0) * others * route.latency_s + others * num_bytes / (members * route.bandwidth_bytes_per_s)


def ring_pass_s(num_bytes: Number, members: int, route: Route | None) -> Number:
    """Seconds in which the parts of `members`, `num_bytes` together, go around their ring once: (n-1) steps of n-th
    parts (ring attention: Liu et al. 2023, arXiv 2310.01889). The traffic of an all-gather."""
    return ring_gather_s(num_bytes, members, route)


def ring_route(problem: Problem, members: Sequence[str]) -> Route | None:
    """The slowest route between neighbours of the ring over `members`, in their order; None for one member."""
    if len(set(members)) < 2:
        return None
    pairs = zip(members, [*members[1:], members[0]], strict=True)
    return slowest(problem, [(a, b) for a, b in pairs if a != b])


def tensor_groups(group: Group, tensor: int) -> list[Group]:
    """The tensor-parallel groups of one replica: `tensor` consecutive devices each, one per part of the context."""
    return [group[k : k + tensor] for k in range(0, len(group), tensor)]


def replica_ring_route(problem: Problem, replicas: Sequence[Group]) -> Route | None:
    """The slowest of the rings that join the k-th devices of all replicas (gradient all-reduce)."""
    if len(replicas) < 2:
        return None
    twin = problem.network.twins
    rings = [tuple(group[k] for group in replicas) for k in range(len(replicas[0]))]
    unlike = {tuple(map(twin.__getitem__, ring)): ring for ring in reversed(rings)}
    return _slower([ring_route(problem, ring) for ring in reversed(unlike.values())])


def expert_routes(problem: Problem, groups: Sequence[Group], expert: int) -> tuple[Route | None, Route | None]:
    """The slowest route inside the expert groups (`expert` consecutive ones of the tensor-parallel `groups`), and among
    the groups that hold the same experts. Routes are widest paths, so that no pair is slower than a ring's neighbours.
    """
    if expert == 1:
        return None, None
    inside = [groups[k : k + expert] for k in range(0, len(groups), expert)]
    return (
        _slower([replica_ring_route(problem, members) for members in inside]),
        _slower([replica_ring_route(problem, groups[k::expert]) for k in range(expert)]),
    )


def pipe_route(problem: Problem, senders: Sequence[Group], receivers: Sequence[Group]) -> Route:
    """The slowest route over which a microbatch moves between two stages.

    Replica j of the receivers talks to the replicas of the senders that hold its samples (contiguous shares); the
    k-th device of a group talks to the k-th of the other.
    """
    twin, pairs = problem.network.twins, dict[tuple[int, int], tuple[str, str]]()
    for a, b in _talking(senders, receivers):
        for pair in zip_longest(a, b, fillvalue=(a if len(a) < len(b) else b)[-1]):
            key = (twin[pair[0]], twin[pair[1]])
            if key not in pairs or pair < pairs[key]:
                pairs[key] = pair
    return slowest(problem, sorted(pairs.values()))


def any_to_any_route(problem: Problem, senders: Sequence[Group], receivers: Sequence[Group]) -> Route:
    """The slowest route between the first devices of any two replicas: whole microbatches are dealt to all in turn."""
    ends = [_one_of_each_kind(problem, [group[0] for group in side]) for side in (senders, receivers)]
    return slowest(problem, [(a, b) for a in ends[0] for b in ends[1]])


def slowest(problem: Problem, pairs: Sequence[tuple[str, str]]) -> Route:
    """The slowest route among device pairs; InputError when two devices have no path of links."""
    routes = []
    for a, b in _unlike(problem, pairs):
        route = problem.network.route(a, b)
        if route is None:
            raise InputError(
                f"devices {a!r} and {b!r} must exchange data, but no link joins them: add a link or keep them apart",
                pointer="/cluster/links",
            )
        routes.append(route)
    found = _slower(routes)
    assert found is not None
    return found


def _unlike(problem: Problem, pairs: Sequence[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """The first of all pairs whose ends hang on the network alike: their routes have one price."""
    twin, kind = problem.network.twins, problem.network.kinds
    first: dict[tuple[int, int, bool, bool], tuple[str, str]] = {}
    for a, b in pairs:
        first.setdefault((kind[a], kind[b], twin[a] == twin[b], a == b), (a, b))
    return first.values()


def _one_of_each_kind(problem: Problem, devices: Sequence[str]) -> list[str]:
    """The first of all devices that hang on the network alike."""
    first: dict[int, str] = {}
    for device in devices:
        first.setdefault(problem.network.twins[device], device)
    return list(first.values())


def _slower(routes: Sequence[Route | None]) -> Route | None:
    real = [route for route in routes if route is not None]
    return min(real, key=lambda r: (r.bandwidth_bytes_per_s, -r.latency_s)) if real else None


def _talking(senders: Sequence[Group], receivers: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Pairs of replicas that share samples when both sides split a microbatch into contiguous shares."""
    s, r = len(senders), len(receivers)
    return [(senders[i], receivers[j]) for j in range(r) for i in range(j * s // r, -(-(j + 1) * s // r))]
