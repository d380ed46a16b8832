"""Devices that hang on the network alike have routes of one price, on clusters of nodes and on random graphs."""

from __future__ import annotations

import itertools
import random

import pytest

from planner.cluster import Cluster, Device, DeviceType, Link, Network
from planner.costs.communication import _talking
from profiles.clusters import parse_cluster

KIND = DeviceType(name="any", memory_bytes=1)


def cluster_of(devices: list[str], links: list[Link]) -> Cluster:
    return Cluster(
        device_types=(KIND,), devices=tuple(Device(id=name, type=KIND.name) for name in devices), links=tuple(links)
    )


def drawn_graph(seed: int) -> Cluster:
    """Any graph of devices and switches, with bandwidths and latencies that are often equal."""
    draw = random.Random(seed)
    devices = [f"d{i}" for i in range(draw.randint(2, 7))]
    vertices = devices + [f"s{i}" for i in range(draw.randint(0, 4))]
    links = [
        Link(a=a, b=b, bandwidth_bytes_per_s=draw.choice([1.0, 2.0]), latency_s=draw.choice([0.0, 1.0]))
        for a, b in itertools.combinations(vertices, 2)
        if draw.random() < 0.5
    ]
    draw.shuffle(links)
    return cluster_of(devices, links)


def drawn_nodes(seed: int) -> Cluster:
    """Nodes of one to three devices under one of three switches, some devices with a link of their own."""
    draw = random.Random(seed)
    devices, links = list[str](), list[Link]()
    for node in range(draw.randint(2, 4)):
        width, above = draw.choice([4.0, 8.0]), draw.choice("FGH")
        for number in range(draw.randint(1, 3)):
            devices.append(f"n{node}g{number}")
            links.append(Link(a=devices[-1], b=f"n{node}", bandwidth_bytes_per_s=width))
            if draw.random() < 0.3:
                links.append(Link(a=devices[-1], b="F", bandwidth_bytes_per_s=1.0))
        links.append(Link(a=f"n{node}", b=above, bandwidth_bytes_per_s=2.0))
    joined = [Link(a="F", b="G", bandwidth_bytes_per_s=3.0), Link(a="G", b="H", bandwidth_bytes_per_s=2.0)]
    return cluster_of(devices, links + joined)


def assert_one_price_per_kind(cluster: Cluster) -> None:
    network, prices = Network(cluster), dict[object, object]()
    for a, b in itertools.permutations([device.id for device in cluster.devices], 2):
        route = network.route(a, b)
        price = None if route is None else (route.bandwidth_bytes_per_s, route.latency_s)
        twins, kinds = network.twins, network.kinds
        for key in ((twins[a], twins[b]), (kinds[a], kinds[b], twins[a] == twins[b], "kinds")):
            assert prices.setdefault(key, price) == price, (a, b)


@pytest.mark.parametrize("form", ["8xL4", "3x4xA100-80G-SXM", "4x8xH100-80G-SXM"])
def test_devices_of_a_usual_cluster_are_of_one_kind(form: str) -> None:
    cluster = parse_cluster(form)
    assert_one_price_per_kind(cluster)
    assert len(set(Network(cluster).kinds.values())) == 1


@pytest.mark.parametrize("seed", range(300))
def test_routes_between_kinds_have_one_price(seed: int) -> None:
    assert_one_price_per_kind(drawn_graph(seed))
    assert_one_price_per_kind(drawn_nodes(seed))


def test_replicas_talk_where_their_shares_overlap() -> None:
    for s, r in itertools.product(range(1, 12), repeat=2):
        senders, receivers = [(f"a{i}",) for i in range(s)], [(f"b{j}",) for j in range(r)]
        overlap = [
            (senders[i], receivers[j])
            for j in range(r)
            for i in range(s)
            if i * r < (j + 1) * s and j * s < (i + 1) * r
        ]
        assert _talking(senders, receivers) == overlap
