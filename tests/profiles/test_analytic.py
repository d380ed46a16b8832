"""Roofline prices: limits, monotonicity, division by the tensor degree, and plausible whole-model figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster import DeviceType
from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph
from planner.profile import Provenance
from profiles import analytic
from profiles.analytic import price
from profiles.catalogue import device_type
from profiles.model import LayerWork, ModelRecord
from profiles.records import load_record, record_names

PEAK, BANDWIDTH = 100e12, 1e12
DEVICE = DeviceType(
    name="plain",
    memory_bytes=10**10,
    peak_flops_per_s={"float32": PEAK / 4, "float16": PEAK},
    memory_bandwidth_bytes_per_s=BANDWIDTH,
)


def _record(work: LayerWork, dtype: str = "float16", **layer: int) -> ModelRecord:
    graph = LayerGraph(
        layers=(Layer(id="a", **layer), Layer(id="b")), edges=(Edge(source="a", target="b", bytes_per_sample=8),)
    )
    return ModelRecord(
        name="one",
        dtype=dtype,
        sequence_length=None,
        graph=graph,
        work={"a": work, "b": LayerWork(forward_flops=0.0, backward_flops=0.0)},
        provenance=Provenance(),
    )


def _cost(work: LayerWork, size: int = 1, tensor: int = 1, **layer: int):
    return price(_record(work, **layer), DEVICE, microbatch_sizes=[size], tensor=tensor).tables[0].layers["a"]


def test_big_products_run_at_the_stated_share_of_the_peak():
    cost = _cost(LayerWork(forward_flops=1e15, backward_flops=2e15))
    assert cost.forward_s == pytest.approx(1e15 / (PEAK * analytic.MATMUL_EFFICIENCY), rel=1e-3)
    assert cost.backward_s == pytest.approx(2 * cost.forward_s, rel=1e-3)


def test_a_member_holds_its_share_for_the_weight_pass():
    work = LayerWork(forward_flops=1.0, backward_flops=2.0, weight_pass_bytes=10)
    assert _cost(work, size=3).weight_pass_bytes == 30
    assert _cost(work, size=3, tensor=4).weight_pass_bytes == 8
    assert _cost(replace(work, weight_pass_bytes=None), size=3).weight_pass_bytes is None


def test_small_products_lose_the_saturation_time():
    cost = _cost(LayerWork(forward_flops=1.0, backward_flops=1.0))
    assert cost.forward_s == pytest.approx(analytic.SATURATION_S, rel=1e-3)


def test_reading_the_weights_bounds_a_small_microbatch():
    weights = 10**10
    cost = _cost(LayerWork(forward_flops=1e6, backward_flops=1e6, weight_bytes=weights))
    read_s = weights / (BANDWIDTH * analytic.MEMORY_EFFICIENCY)
    assert cost.forward_s == pytest.approx(read_s)
    assert cost.backward_s == pytest.approx(analytic.BACKWARD_WEIGHT_PASSES * read_s)


def test_operators_without_flops_move_bytes():
    work = LayerWork(forward_flops=0.0, backward_flops=0.0, forward_moved_bytes=1e9, backward_moved_bytes=3e9)
    cost = _cost(work, size=2)
    assert cost.forward_s == pytest.approx(2e9 / (BANDWIDTH * analytic.MEMORY_EFFICIENCY))
    assert cost.backward_s == pytest.approx(3 * cost.forward_s)


def test_an_embedding_reads_no_whole_table():
    cost = _cost(LayerWork(forward_flops=0.0, backward_flops=0.0, weight_bytes=10**10))
    assert cost.forward_s == 0.0 < cost.backward_s


def test_bytes_scale_with_the_microbatch_and_the_tensor_degree():
    work = LayerWork(
        forward_flops=0.0,
        backward_flops=0.0,
        activation_bytes=1000,
        workspace_bytes=100,
        gradient_workspace_bytes=40,
    )
    assert _cost(work, size=4).activation_bytes == 4000
    assert _cost(work, size=4, tensor=8).activation_bytes == 500
    assert _cost(work, size=4).workspace_bytes == 440
    assert _cost(work, size=4, tensor=8).workspace_bytes == 55


def test_the_optimizer_updates_replicated_parameters_on_every_member():
    work = LayerWork(forward_flops=0.0, backward_flops=0.0)
    per_parameter = analytic.OPTIMIZER_BYTES_PER_PARAMETER / (BANDWIDTH * analytic.MEMORY_EFFICIENCY)
    cost = _cost(work, tensor=4, parameter_bytes=2 * 1000, replicated_parameter_bytes=2 * 200)
    assert cost.optimizer_s == pytest.approx((200 + 800 / 4) * per_parameter)


@given(
    flops=st.floats(0, 1e15), moved=st.floats(0, 1e12), weights=st.integers(0, 10**11), size=st.integers(1, 64),
    tensor=st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_more_work_never_costs_less(flops, moved, weights, size, tensor):
    work = LayerWork(forward_flops=flops, backward_flops=flops, forward_moved_bytes=moved, weight_bytes=weights)
    cost = _cost(work, size, tensor)
    assert _cost(work, size + 1, tensor).forward_s >= cost.forward_s
    assert _cost(work, size, 2 * tensor).forward_s <= cost.forward_s
    assert _cost(replace(work, forward_flops=2 * flops), size, tensor).forward_s >= cost.forward_s
    assert cost.forward_s >= flops * size / tensor / PEAK


def test_one_table_per_size_and_degree():
    profile = price(load_record("gpt2-small"), device_type("A100-80G-SXM"), microbatch_sizes=[4, 1], tensor=[2, 1])
    keys = [(table.tensor, table.microbatch_size, table.sequence_length) for table in profile.tables]
    assert keys == [(1, 1, 1024), (1, 4, 1024), (2, 1, 1024), (2, 4, 1024)]
    assert (profile.device_type, profile.dtype) == ("A100-80G-SXM", "bfloat16")
    assert "not measured" in profile.provenance.method


@pytest.mark.parametrize("name", record_names())
def test_whole_models_run_below_the_achievable_share_of_the_peak(name):
    record, device = load_record(name), device_type("H100-80G-SXM")
    (table,) = price(record, device, microbatch_sizes=[16]).tables
    seconds = sum(cost.forward_s + cost.backward_s for cost in table.layers.values())
    flops = 16 * sum(work.forward_flops + work.backward_flops for work in record.work.values())
    utilisation = flops / seconds / device.peak_flops_per_s["bfloat16"]
    assert 0.1 < utilisation < analytic.MATMUL_EFFICIENCY


def test_a_device_without_bfloat16_computes_in_float16():
    profile = price(load_record("gpt2-small"), device_type("V100-16G"), microbatch_sizes=[1])
    assert "float16" in profile.provenance.method
    assert profile.dtype == "bfloat16"


def test_float32_products_are_slower():
    work = LayerWork(forward_flops=1e15, backward_flops=2e15)
    fast, slow = (
        price(_record(work), DEVICE, microbatch_sizes=[1], dtype=dtype).tables[0].layers["a"].forward_s
        for dtype in ("float16", "float32")
    )
    assert slow == pytest.approx(4 * fast, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"microbatch_sizes": []}, "no microbatch size"),
        ({}, {"microbatch_sizes": [0]}, "microbatch size is 0"),
        ({}, {"microbatch_sizes": [1], "tensor": 0}, "tensor degree is 0"),
        ({}, {"microbatch_sizes": [1], "dtype": "float8"}, "use one of float16, float32"),
        ({"peak_flops_per_s": None}, {"microbatch_sizes": [1]}, "peak_flops_per_s"),
        ({"memory_bandwidth_bytes_per_s": None}, {"microbatch_sizes": [1]}, "memory_bandwidth_bytes_per_s"),
    ],
)
def test_what_cannot_be_priced_is_refused(change, options, message):
    work = LayerWork(forward_flops=1.0, backward_flops=1.0)
    with pytest.raises(InputError, match=message):
        price(_record(work), replace(DEVICE, **change), **options)
