"""The catalogue of devices and links: names, units, sources, errors."""

import pytest

from planner.checks import check_cluster
from planner.cluster import Cluster, Device
from planner.errors import InputError
from planner.profile import DTYPE_BYTES
from profiles import catalogue

WANTED = {
    "V100-16G", "V100-32G", "A100-40G-SXM", "A100-80G-SXM", "A100-40G-PCIe", "A100-80G-PCIe", "H100-80G-SXM",
    "H100-80G-PCIe", "H200-141G", "B200", "L4", "L40S", "T4", "RTX-3090", "RTX-4090", "cpu-core",
}  # fmt: skip


def test_every_wanted_device_is_there():
    assert set(catalogue.device_type_names()) >= WANTED


@pytest.mark.parametrize("name", catalogue.device_type_names())
def test_a_device_has_sane_figures_and_a_source(name):
    kind = catalogue.device_type(name)
    check_cluster(Cluster(device_types=(kind,), devices=(Device(id="d", type=name),)))
    assert kind.source
    assert 0 < kind.reserved_bytes < kind.memory_bytes / 5
    assert kind.memory_bandwidth_bytes_per_s > 1e9
    assert set(kind.peak_flops_per_s) <= set(DTYPE_BYTES)
    assert kind.peak_flops_per_s["float32"] > 1e9


@pytest.mark.parametrize("name", catalogue.device_type_names())
def test_the_usual_wiring_names_known_links(name):
    wiring = catalogue.interconnect(name)
    assert {wiring.node_link, wiring.fabric_link} <= set(catalogue.link_names())
    assert wiring.fabric_per in ("device", "node")


@pytest.mark.parametrize("name", catalogue.link_names())
def test_a_link_has_a_rate_a_latency_and_a_source(name):
    kind = catalogue.link(name)
    assert kind.bandwidth_bytes_per_s >= 1e9
    assert 1e-6 <= kind.latency_s <= 1e-3
    assert kind.source


@pytest.mark.parametrize("name", [name for name in catalogue.device_type_names() if name != "cpu-core"])
def test_reserved_memory_follows_the_stated_rule(name):
    kind = catalogue.device_type(name)
    share = 0.02 + (1 / 16 if "inline ECC" in kind.source else 0)
    assert kind.reserved_bytes == pytest.approx(1.25 * 2**30 + share * kind.memory_bytes, abs=0.006 * 2**30)


def test_figures_of_the_h100_datasheet():
    kind = catalogue.device_type("H100-80G-SXM")
    assert kind.memory_bytes == 80 * 2**30
    assert kind.peak_flops_per_s["bfloat16"] == 989.5e12  # 1,979 with sparsity
    assert catalogue.link("nvlink-4").bandwidth_bytes_per_s == 450e9


def test_nvlink_and_pcie_grow_with_the_generation():
    for family in ("nvlink-{}", "pcie-{}-x16"):
        names = [family.format(n) for n in range(1, 6) if family.format(n) in catalogue.link_names()]
        rates = [catalogue.link(name).bandwidth_bytes_per_s for name in names]
        assert len(rates) >= 3
        assert rates == sorted(set(rates))


def test_an_unknown_device_type_lists_near_matches():
    with pytest.raises(InputError, match=r"'H100'.*did you mean H100-80G-SXM or H100-80G-PCIe\?.*Known: V100-16G"):
        catalogue.device_type("H100")


def test_an_unknown_link_lists_near_matches():
    with pytest.raises(InputError, match=r"unknown link 'nvlink'.*nvlink-1"):
        catalogue.link("nvlink")


def test_changing_an_answer_does_not_change_the_catalogue():
    catalogue.device_type("T4").peak_flops_per_s["float32"] = 1.0
    assert catalogue.device_type("T4").peak_flops_per_s["float32"] == 8.1e12
