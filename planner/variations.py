"""Clusters with one thing changed: fewer or more devices, other memory, faster links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from planner.checks import MAX_BANDWIDTH_BYTES_PER_S, MAX_BYTES
from planner.cluster import Cluster, Link
from planner.problem import Problem


def with_cluster(problem: Problem, cluster: Cluster) -> Problem:
    """The problem on another cluster. InputError when it does not fit to the rest."""
    return Problem(graph=problem.graph, profiles=problem.profiles, cluster=cluster, workload=problem.workload)


def only(cluster: Cluster, ids: Collection[str]) -> Cluster:
    """The cluster with the named devices alone, and the switches that still join something."""
    kept = tuple(device for device in cluster.devices if device.id in ids)
    names = {device.id for device in kept}
    gone = {device.id for device in cluster.devices} - names
    links = [link for link in cluster.links if link.a not in gone and link.b not in gone]
    while True:
        ends = Counter(end for link in links for end in (link.a, link.b))
        joining = [link for link in links if all(end in names or ends[end] > 1 for end in (link.a, link.b))]
        if len(joining) == len(links):
            return replace(cluster, devices=kept, links=tuple(links))
        links = joining


def with_memory(cluster: Cluster, limits: dict[str, int]) -> Cluster:
    """The cluster with `limits[id]` bytes that a plan may use on the named devices, or the most that there is."""
    devices = tuple(
        replace(device, free_memory_bytes=min(limits[device.id], MAX_BYTES)) if device.id in limits else device
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def with_bandwidth(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with every link `factor` times as wide, as far as a link can be."""
    links = tuple(
        replace(link, bandwidth_bytes_per_s=min(factor * link.bandwidth_bytes_per_s, MAX_BANDWIDTH_BYTES_PER_S))
        for link in cluster.links
    )
    return replace(cluster, links=links)


def unit(cluster: Cluster) -> tuple[str, ...]:
    """The devices that come together when the cluster grows: the last node, or the last device where there is one node.

    A node is a switch with some of the devices, not all; of several switches at a device the one with the fewest.
    """
    ids = {device.id for device in cluster.devices}
    last = cluster.devices[-1].id
    around = [_ends(cluster, switch) & ids for switch in sorted(_ends(cluster, last) - ids)]
    node = min(around, key=len, default=ids)
    return tuple(device.id for device in cluster.devices if device.id in node) if node != ids else (last,)


def grown(cluster: Cluster, units: int) -> Cluster | None:
    """The cluster with copies of its last unit, wired as that one is; None where that has no link to the rest."""
    members = unit(cluster)
    private = _private(cluster, members)
    if not any((link.a in private) != (link.b in private) for link in cluster.links):
        return None
    devices, links = list(cluster.devices), list(cluster.links)
    taken = {device.id for device in devices} | {end for link in links for end in (link.a, link.b)}
    for number in range(1, units + 1):
        names = {vertex: _fresh(vertex, number, taken) for vertex in private}
        devices += [replace(device, id=names[device.id]) for device in cluster.devices if device.id in members]
        links += [_copy(link, names) for link in cluster.links if link.a in private or link.b in private]
    return replace(cluster, devices=tuple(devices), links=tuple(links))


def _private(cluster: Cluster, members: tuple[str, ...]) -> set[str]:
    """The members and the switch of their node, if they are one."""
    ids = {device.id for device in cluster.devices}
    if len(members) == len(ids) or len(members) == 1:
        return set(members)
    shared = set.intersection(*(_ends(cluster, member) - ids for member in members))
    return set(members) | {switch for switch in shared if _ends(cluster, switch) & ids == set(members)}


def _ends(cluster: Cluster, vertex: str) -> set[str]:
    """The neighbours of a vertex."""
    return {link.b if link.a == vertex else link.a for link in cluster.links if vertex in (link.a, link.b)}


def _copy(link: Link, names: dict[str, str]) -> Link:
    return replace(link, a=names.get(link.a, link.a), b=names.get(link.b, link.b))


def _fresh(vertex: str, number: int, taken: set[str]) -> str:
    name = f"{vertex}+{number}"
    while name in taken:
        name += "+"
    taken.add(name)
    return name
