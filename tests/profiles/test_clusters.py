"""Short forms and cluster files: devices, wiring, routes, errors."""

import pytest

from planner import codec
from planner.cluster import Cluster, Network
from planner.errors import InputError
from profiles import catalogue, clusters
from profiles.clusters import parse_cluster, parse_short_form

MIXED = """
name = "lab"

[[nodes]]
count = 2
devices = [{ type = "A100-80G-SXM", count = 2, free_memory_bytes = "70GiB" }]
fabric = "ethernet-100"
fabric_per = "node"

[[nodes]]
devices = [{ type = "T4" }, { type = "cpu-core", count = 2 }]

[[devices]]
id = "old"
type = "my-card"

[[links]]
a = "old"
b = "fabric"
type = "ethernet-25"

[[device_types]]
name = "my-card"
memory_bytes = "24GiB"
"""


def ids(cluster):
    return [device.id for device in cluster.devices]


def test_one_node_joins_its_devices_by_nvlink():
    cluster = parse_cluster("8xH100-80G-SXM")
    assert ids(cluster) == [f"gpu{i}" for i in range(8)]
    route = Network(cluster).route("gpu0", "gpu7")
    assert route.bandwidth_bytes_per_s == 450e9
    assert route.latency_s == pytest.approx(catalogue.link("nvlink-4").latency_s)


def test_two_nodes_use_nvlink_inside_and_a_network_port_per_device_outside():
    cluster = parse_cluster("2x8xA100-80G-SXM")
    network = Network(cluster)
    assert ids(cluster)[:2] == ["node0/gpu0", "node0/gpu1"]
    assert ids(cluster)[-1] == "node1/gpu7"
    assert network.route("node0/gpu0", "node0/gpu5").bandwidth_bytes_per_s == 300e9
    across = network.route("node0/gpu0", "node1/gpu5")
    assert across.bandwidth_bytes_per_s == 25e9
    assert across.latency_s == pytest.approx(20e-6)
    other = network.route("node0/gpu1", "node1/gpu6")
    assert not {number for number, _ in across.hops} & {number for number, _ in other.hops}


def test_pcie_cards_share_the_network_port_of_their_node():
    cluster = parse_cluster("2x4xH100-80G-PCIe")
    network = Network(cluster)
    assert network.route("node0/gpu0", "node0/gpu1").bandwidth_bytes_per_s == 63.015e9
    first, second = network.route("node0/gpu0", "node1/gpu0"), network.route("node0/gpu1", "node1/gpu1")
    assert first.bandwidth_bytes_per_s == 12.5e9
    shared = {number for number, _ in first.hops} & {number for number, _ in second.hops}
    assert {(cluster.links[n].a, cluster.links[n].b) for n in shared} == {
        ("node0/switch", "fabric"),
        ("node1/switch", "fabric"),
    }
    assert all(link.shared for link in cluster.links)


def test_local_cores_share_the_memory_of_the_host(monkeypatch):
    monkeypatch.setattr(clusters, "host_memory_bytes", lambda: 24 * 2**30)
    cluster = parse_cluster("local:2")
    assert ids(cluster) == ["cpu0", "cpu1"]
    assert {device.free_memory_bytes for device in cluster.devices} == {8 * 2**30 - 2**29}
    route = Network(cluster).route("cpu0", "cpu1")
    assert route.seconds(4e9) == pytest.approx(1.0 + 0.13e-3)


def test_local_counts_the_cores_and_says_when_memory_runs_out(monkeypatch):
    monkeypatch.setattr(clusters.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(clusters, "host_memory_bytes", lambda: 24 * 2**30)
    assert len(parse_cluster("local").devices) == 3
    monkeypatch.setattr(clusters, "host_memory_bytes", lambda: 2**30)
    with pytest.raises(InputError, match=r"local:2 leaves no memory.*local:2@1GiB"):
        parse_cluster("local:2")


def test_the_memory_of_this_host_is_known():
    assert 2**27 < clusters.host_memory_bytes() < 2**50


@pytest.mark.parametrize(("text", "free"), [("local:2@1.5GiB", 3 * 2**29), ("4xT4@10GB", 10**10)])
def test_free_memory_can_be_stated(text, free):
    assert {device.free_memory_bytes for device in parse_cluster(text).devices} == {free}


@pytest.mark.parametrize("text", ["1xT4", "1x1xT4", "local:1"])
def test_one_device_alone_has_no_link(text):
    cluster = parse_cluster(text)
    assert len(cluster.devices) == 1
    assert cluster.links == ()


def test_nodes_of_one_device_meet_at_the_fabric():
    network = Network(parse_cluster("3x1xT4"))
    assert network.route("node0/gpu0", "node2/gpu0").bandwidth_bytes_per_s == 12.5e9


@pytest.mark.parametrize(
    "text", [f"8x{name}" for name in catalogue.device_type_names()] + ["2x8xB200", "8x8xH100-80G-SXM", "2x2xcpu-core"]
)
def test_short_forms_connect_all_devices_and_round_trip(text):
    cluster = parse_cluster(text)
    network = Network(cluster)
    assert all(network.route(cluster.devices[0].id, device.id) for device in cluster.devices)
    assert codec.loads(Cluster, codec.dumps(cluster)) == cluster
    assert parse_cluster(text) == cluster
    assert cluster.name == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0xT4", "0 devices: give at least 1"),
        ("0x4xT4", "0 nodes: give at least 1"),
        ("local:0", "0 processes"),
        ("100001xT4", r"100001 devices \(limit 100000\)"),
        ("1000x1000xT4", r"1000000 devices \(limit 100000\)"),
        ("9" * 6000 + "xT4", r"999999999999 devices \(limit 100000\)"),
        ("8xH100", "did you mean H100-80G-SXM or H100-80G-PCIe"),
        ("H100-80G-SXM", "is no cluster: write local:2, 8xH100-80G-SXM"),
        ("", "is no cluster"),
        ("8xT4@", "is no cluster"),
        ("8xT4@lots", "'lots' is no size: write a number and one of B, kB"),
        ("-1xT4", "is no cluster"),
        ("missing.toml", "missing.toml cannot be read: No such file"),
    ],
)
def test_bad_short_forms_say_what_to_change(text, message):
    with pytest.raises(InputError, match=message):
        parse_cluster(text)


def test_short_forms_read_no_files(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(MIXED)
    with pytest.raises(InputError, match="is no cluster"):
        parse_short_form(str(path))


def test_a_toml_file_mixes_groups_single_devices_and_own_types(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(MIXED)
    cluster = parse_cluster(str(path))
    assert cluster.name == "lab"
    assert ids(cluster) == [
        "node0/gpu0", "node0/gpu1", "node1/gpu0", "node1/gpu1", "node2/gpu0", "node2/cpu0", "node2/cpu1", "old",
    ]  # fmt: skip
    assert cluster.devices[0].free_memory_bytes == 70 * 2**30
    assert {kind.name for kind in cluster.device_types} == {"A100-80G-SXM", "T4", "cpu-core", "my-card"}
    network = Network(cluster)
    assert network.route("node0/gpu0", "node0/gpu1").bandwidth_bytes_per_s == 300e9
    assert network.route("node0/gpu0", "node1/gpu1").bandwidth_bytes_per_s == 12.5e9
    assert network.route("node2/cpu0", "node2/cpu1").bandwidth_bytes_per_s == 4e9
    assert network.route("old", "node0/gpu0").bandwidth_bytes_per_s == 3.125e9


def test_a_json_file_holds_the_noun_itself(tmp_path):
    cluster = parse_cluster("2x2xT4")
    path = tmp_path / "noun.json"
    path.write_text(codec.dumps(cluster))
    assert parse_cluster(str(path)) == cluster


def test_link_figures_of_the_row_win_over_its_type(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(
        'devices = [{ id = "a", type = "T4" }, { id = "b", type = "T4" }]\n'
        'links = [{ a = "a", b = "b", type = "pcie-3-x16", bandwidth_bytes_per_s = "80Gbit/s", shared = false }]\n'
    )
    (link,) = parse_cluster(str(path)).links
    assert link.bandwidth_bytes_per_s == 1e10
    assert link.latency_s == catalogue.link("pcie-3-x16").latency_s
    assert not link.shared


@pytest.mark.parametrize(
    ("content", "message", "pointer"),
    [
        ("", "no devices", "/cluster/devices"),
        ("devices = 3", "devices is a list", "/devices"),
        ("nodes = 3", "nodes is a list", "/nodes"),
        ("[[nodes]]\ndevices = []", "no devices", "/nodes"),
        ("[[nodes]]\ncount = 0\ndevices = [{ type = 'T4' }]", "0 nodes", "/nodes/0"),
        ("[[nodes]]\ncount = -3\ndevices = [{ type = 'T4' }]", "-3 nodes", "/nodes/0"),
        ("[[nodes]]\nwires = 3\ndevices = [{ type = 'T4' }]", "node group 0: /wires: Unexpected", "/nodes/0/wires"),
        ("[[nodes]]\ndevices = [{ type = 'T4' }]\nlink = 'string'", "unknown link 'string'", ""),
        ("[[nodes]]\ndevices = [{ type = 'T5' }]", "'T5', which the catalogue does not have: give its `link`", ""),
        ("[[devices]]\nid = 'a'\ntype = 'T5'", "unknown device type 'T5'", ""),
        ("[[devices]]\nid = 'a'", "/devices/0/type", "/devices/0/type"),
        ("[[devices]]\nid = 'a'\ntype = 'T4'\nfree_memory_bytes = -1", "free_memory_bytes is -1", None),
        ("[[devices]]\nid = 'a'\ntype = 'T4'\nfree_memory_bytes = '1 potato'", "'1 potato' is no size", ""),
        ("devices = [", "is not valid TOML", ""),
        ("speed = 3\n[[devices]]\nid = 'a'\ntype = 'T4'", "/speed", "/speed"),
    ],
)
def test_bad_files_name_the_field_and_the_file(tmp_path, content, message, pointer):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        parse_cluster(str(path))
    assert "bad.toml" in str(caught.value)
    if pointer is not None:
        assert caught.value.pointer == pointer


def test_a_document_that_is_no_object_is_refused(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match="a cluster is an object"):
        parse_cluster(str(path))
