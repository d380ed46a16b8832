"""Latency and bandwidth from measured seconds, and the cluster file that comes of them."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import codec
from planner.cluster import Device, Network
from planner.errors import InputError
from profiles.catalogue import device_type
from profiles.clusters import read_cluster
from profiles.links import LinkSamples, fit, measured_cluster

SIZES = (4096, 65_536, 524_288, 2**20, 2**23)


def _line(latency_s, rate, sizes=SIZES):
    return {size: latency_s + size / rate for size in sizes}


@given(st.floats(1e-6, 1e-2), st.floats(1e8, 1e12))
def test_a_line_is_found_again(latency_s, rate):
    found = fit(_line(latency_s, rate))
    assert found.latency_s == pytest.approx(latency_s, rel=1e-4)
    assert found.bandwidth_bytes_per_s == pytest.approx(rate, rel=1e-3)
    assert found.error < 1e-6


def test_one_bad_size_does_not_turn_the_line():
    found = fit(_line(1e-4, 4e9) | {524_288: 5e-3})
    assert (found.latency_s, found.bandwidth_bytes_per_s) == (pytest.approx(1e-4), pytest.approx(4e9))
    assert found.error > 0.9


def test_no_latency_is_below_zero():
    """The largest message is slower per byte (caches): the line through the last two points would start below zero."""
    found = fit({2**20: 1e-4, 2**22: 4e-4, 2**23: 2e-3})
    assert found.latency_s >= 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({1024: 1.0}, "1 message sizes cannot tell latency from bandwidth"),
        ({0: 1.0, 8: 2.0}, "at least 1 byte"),
        ({4: 0.0, 8: 2.0}, "more than 0 seconds"),
    ],
)
def test_what_says_nothing_is_refused(seconds, words):
    with pytest.raises(InputError, match=words):
        fit(seconds)


def _cluster(rates):
    """Three cores of one node; `rates` of the pairs in order."""
    names = ["cpu0", "cpu1", "cpu2"]
    pairs = itertools.combinations(names, 2)
    samples = [LinkSamples(a, b, _line(1e-4, rate)) for (a, b), rate in zip(pairs, rates, strict=True)]
    devices = [Device(id=name, type="cpu-core") for name in names]
    node_of = dict.fromkeys(names, "node0")
    return measured_cluster(devices, [device_type("cpu-core")], samples, node_of=node_of)


def test_noise_makes_no_detours():
    cluster = _cluster([4.0e9, 4.2e9, 3.9e9])
    assert [link.bandwidth_bytes_per_s for link in cluster.links] == [pytest.approx(4.0e9)] * 3
    network = Network(cluster)
    assert all(len(network.route(link.a, link.b).hops) == 1 for link in cluster.links)


def test_links_of_other_kinds_keep_their_own_figures():
    rates = [link.bandwidth_bytes_per_s for link in _cluster([4e9, 4e9, 1e9]).links]
    assert rates == [pytest.approx(4e9), pytest.approx(4e9), pytest.approx(1e9)]


def test_a_bad_link_is_named():
    with pytest.raises(InputError, match="link cpu0 to cpu1: 1 message sizes"):
        measured_cluster(
            [Device(id="cpu0", type="cpu-core"), Device(id="cpu1", type="cpu-core")],
            [device_type("cpu-core")],
            [LinkSamples("cpu0", "cpu1", {8: 1.0})],
            node_of={"cpu0": "node0", "cpu1": "node0"},
        )


def test_the_file_reads_back(tmp_path):
    cluster = _cluster([4e9, 4e9, 4e9])
    path = tmp_path / "lab.json"
    path.write_text(codec.dumps(cluster))
    assert read_cluster(path) == cluster
    assert json.loads(path.read_text())["document"] == "cluster"
