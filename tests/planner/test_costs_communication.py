"""Transfers and collectives by hand."""

from __future__ import annotations

import pytest
from strategies import chain_problem

from planner.cluster import Cluster, Device, DeviceType, Link, Route
from planner.costs.communication import (
    pipe_route,
    replica_ring_route,
    ring_all_reduce_s,
    ring_gather_s,
    ring_route,
    slowest,
)
from planner.errors import InputError
from planner.problem import Problem

FAST, SLOW = 64.0, 4.0
ROUTE = Route(bandwidth_bytes_per_s=8.0, latency_s=0.25)


@pytest.fixture
def two_nodes() -> Problem:
    """d0, d1 on one node and d2, d3 on the other, joined by a slow link with latency."""
    base = chain_problem([(1.0, 2.0)], devices=1, num_microbatches=1)
    inside = [
        Link(a=a, b=b, bandwidth_bytes_per_s=FAST) for a, b in (("d0", "n0"), ("d1", "n0"), ("d2", "n1"), ("d3", "n1"))
    ]
    return Problem(
        graph=base.graph,
        profiles=base.profiles,
        workload=base.workload,
        cluster=Cluster(
            device_types=(DeviceType(name="gpu", memory_bytes=64),),
            devices=tuple(Device(id=f"d{i}", type="gpu") for i in range(4)),
            links=(*inside, Link(a="n0", b="n1", bandwidth_bytes_per_s=SLOW, latency_s=0.5)),
        ),
    )


@pytest.mark.parametrize(
    ("num_bytes", "members", "seconds"),
    [
        (32, 2, 2 * 0.25 + 32 / 8),  # 2 (n-1)/n = 1
        (32, 4, 6 * 0.25 + 1.5 * 32 / 8),
        (0, 4, 0.0),  # nothing to sum pays no latency
        (32, 1, 0.0),
    ],
)
def test_ring_all_reduce(num_bytes: int, members: int, seconds: float) -> None:
    """2 (n-1) steps of n-th parts (Patarasuk and Yuan 2009)."""
    assert ring_all_reduce_s(num_bytes, members, ROUTE) == seconds
    assert ring_gather_s(num_bytes, members, ROUTE) == seconds / 2


def test_without_a_route_there_is_nobody_to_sum_with() -> None:
    assert ring_all_reduce_s(32, 4, None) == 0.0


def test_a_transfer_pays_latency_once_and_nothing_for_nothing() -> None:
    assert ROUTE.seconds(16) == 2.25
    assert ROUTE.seconds(0) == 0.0


def test_a_ring_is_as_slow_as_its_slowest_neighbours(two_nodes: Problem) -> None:
    near, far = ring_route(two_nodes, ["d0", "d1"]), ring_route(two_nodes, ["d0", "d1", "d2"])
    assert near is not None
    assert far is not None
    assert (near.bandwidth_bytes_per_s, near.latency_s) == (FAST, 0.0)
    assert (far.bandwidth_bytes_per_s, far.latency_s) == (SLOW, 0.5)
    assert ring_route(two_nodes, ["d0"]) is None


def test_replicas_of_groups_form_one_ring_per_rank(two_nodes: Problem) -> None:
    inside = replica_ring_route(two_nodes, [("d0", "d2"), ("d1", "d3")])  # d0-d1 and d2-d3
    across = replica_ring_route(two_nodes, [("d0", "d1"), ("d2", "d3")])  # d0-d2 and d1-d3
    assert inside is not None
    assert across is not None
    assert inside.bandwidth_bytes_per_s == FAST
    assert across.bandwidth_bytes_per_s == SLOW
    assert replica_ring_route(two_nodes, [("d0", "d1")]) is None


def test_replicas_that_share_samples_talk(two_nodes: Problem) -> None:
    """Two senders, two receivers: each sends to its own counterpart only; with one receiver both send to it."""
    assert pipe_route(two_nodes, [("d0",), ("d2",)], [("d1",), ("d3",)]).bandwidth_bytes_per_s == FAST
    assert pipe_route(two_nodes, [("d0",), ("d2",)], [("d3",), ("d1",)]).bandwidth_bytes_per_s == SLOW
    assert pipe_route(two_nodes, [("d0",), ("d2",)], [("d1",)]).bandwidth_bytes_per_s == SLOW
    assert pipe_route(two_nodes, [("d0", "d1")], [("d2", "d3")]).latency_s == 0.5


def test_devices_without_a_path_are_named() -> None:
    base = chain_problem([(1.0, 2.0)], devices=1, num_microbatches=1)
    apart = Problem(
        graph=base.graph,
        profiles=base.profiles,
        workload=base.workload,
        cluster=Cluster(
            device_types=(DeviceType(name="gpu", memory_bytes=64),),
            devices=(Device(id="d0", type="gpu"), Device(id="d1", type="gpu")),
        ),
    )
    with pytest.raises(InputError, match="devices 'd0' and 'd1' must exchange data, but no link joins them"):
        slowest(apart, [("d0", "d1")])
