"""Latency and bandwidth of links from measured seconds, and the cluster that these links join. Needs no torch.

Every pair of devices is measured and gets a link of its own. Pairs of one kind (within a node, between nodes) that
differ by no more than the noise get the figures of their middle, so that the direct way stays the shortest.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.checks import check_cluster
from planner.cluster import Cluster, Device, DeviceType, Link
from planner.errors import InputError

ALIKE = 1.25
"""Bandwidths of one kind of link that differ by no more than this factor are one bandwidth, measured several times."""


@dataclass(frozen=True, slots=True)
class LinkSamples:
    """Seconds of one-way messages between two devices: size in bytes -> median seconds."""

    a: str
    b: str
    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LinkFit:
    """seconds = latency + bytes / bandwidth; `error` is the largest relative error at a measured size."""

    latency_s: float
    bandwidth_bytes_per_s: float
    error: float


def fit(seconds: Mapping[int, float]) -> LinkFit:
    """The line with the least sum of relative errors, so that one bad size does not turn it.

    Such a line passes through two of the points, or through one of them and the origin; all are tried (n^2 of them,
    n^3 steps). InputError with fewer than two sizes, or when larger messages are not slower.
    """
    points = sorted(seconds.items())
    if len(points) < 2:
        raise InputError(f"{len(points)} message sizes cannot tell latency from bandwidth: measure at least two")
    if points[0][0] < 1 or min(seconds.values()) <= 0:
        raise InputError("messages need at least 1 byte and more than 0 seconds: measure again")
    lines = [_through(one, two) for one, two in itertools.combinations(points, 2)]
    lines += [(0.0, t / size) for size, t in points]
    usable = [line for line in lines if line[0] >= 0 and line[1] > 0]
    latency_s, per_byte_s = min(usable, key=lambda line: sum(_errors(line, points)))
    return LinkFit(latency_s, 1 / per_byte_s, max(_errors((latency_s, per_byte_s), points)))


def _through(one: tuple[int, float], two: tuple[int, float]) -> tuple[float, float]:
    """(seconds of an empty message, seconds per byte)."""
    slope = (two[1] - one[1]) / (two[0] - one[0])
    return one[1] - slope * one[0], slope


def _errors(line: tuple[float, float], points: Sequence[tuple[int, float]]) -> list[float]:
    return [abs(line[0] + line[1] * size - t) / t for size, t in points]


def measured_cluster(
    devices: Sequence[Device],
    device_types: Sequence[DeviceType],
    samples: Sequence[LinkSamples],
    *,
    node_of: Mapping[str, str],
    name: str = "measured",
) -> Cluster:
    """The devices, joined by a link for every measured pair. `node_of` says which node a device is in. Checked."""
    links = [_link(one) for one in samples]
    kinds: dict[bool, list[Link]] = {}
    for link in links:
        kinds.setdefault(node_of[link.a] == node_of[link.b], []).append(link)
    made = Cluster(
        name=name,
        device_types=tuple(device_types),
        devices=tuple(devices),
        links=tuple(link for kind in kinds.values() for link in _evened(kind)),
    )
    check_cluster(made)
    return made


def _link(one: LinkSamples) -> Link:
    try:
        found = fit(one.seconds)
    except InputError as fault:
        raise InputError(f"link {one.a} to {one.b}: {fault}") from None
    return Link(a=one.a, b=one.b, bandwidth_bytes_per_s=found.bandwidth_bytes_per_s, latency_s=found.latency_s)


def _evened(links: Sequence[Link]) -> list[Link]:
    """The same figures for all, where they are alike."""
    rates = [link.bandwidth_bytes_per_s for link in links]
    if max(rates) > ALIKE * min(rates):
        return list(links)
    rate, latency_s = statistics.median(rates), statistics.median(link.latency_s for link in links)
    return [replace(link, bandwidth_bytes_per_s=rate, latency_s=latency_s) for link in links]
