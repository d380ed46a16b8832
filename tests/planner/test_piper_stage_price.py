"""Piper's price of one stage by hand: compute, both passes over cut edges, gradient exchange, memory (`algo.cpp`)."""

from __future__ import annotations

import math

import pytest

from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.piper import DegreeCost, PiperCost, PiperEdge, Run
from planner.ideals import Groups


def three_layers(memory_bytes: float = 1000.0) -> PiperCost:
    """A chain 0 -> 1 -> 2; the middle layer at tensor degree 2 synchronises 6 bytes in front and 4 behind."""
    plain = DegreeCost(runs=(Run(compute_s=1.0, kept_bytes=5, fixed_bytes=7),), weight_bytes=10)
    middle = DegreeCost(
        runs=(Run(compute_s=3.0, kept_bytes=40, fixed_bytes=20), Run(compute_s=4.0, kept_bytes=8, fixed_bytes=60)),
        weight_bytes=80,
        sync_from={0: 6.0},
        sync_to={2: 4.0},
    )
    return PiperCost(
        groups=Groups(
            layers=((0,), (1,), (2,)), of_layer=(0, 1, 2), before=(0b000, 0b001, 0b010), after=(0b010, 0b100, 0b000)
        ),
        layers=[{1: plain, 2: plain}, {2: middle}, {1: plain, 2: plain}],
        edges=(PiperEdge(source=0, target=1, num_bytes=30.0), PiperEdge(source=1, target=2, num_bytes=50.0)),
        bandwidth_bytes_per_s=100.0,
        num_microbatches=8,
        num_devices=16,
        memory_bytes=memory_bytes,
    )


def test_seconds_of_the_middle_stage() -> None:
    """d = 4, N = 8: (3 + 2 (30 + 6 + 50 + 4) / 100) / 4 + 4 * 3 * 80 / (4 * 8) / 100."""
    stage = StageShape(layers=0b010, before=0b001, degree=4, tensor=2, in_flight=2)
    assert three_layers().seconds(stage) == pytest.approx((3 + 1.8) / 4 + 30 / 100)


def test_seconds_of_a_stage_with_one_cut() -> None:
    """Layers 0 and 1 on d = 1: 4 s and 2 (50 + 4) bytes; what lies between them is not sent."""
    stage = StageShape(layers=0b011, before=0, tensor=2, in_flight=3)
    assert three_layers().seconds(stage) == pytest.approx(4 + 108 / 100)


def test_memory_counts_what_is_in_flight_and_recomputed() -> None:
    cost = three_layers()
    stage = StageShape(layers=0b011, before=0, tensor=2, in_flight=3)
    assert cost.memory(stage) == (5 + 40) * 3 + 7 + 20
    again = StageShape(layers=0b011, before=0, tensor=2, in_flight=3, recomputed=0b010)
    assert cost.memory(again) == (5 + 8) * 3 + 7 + 60
    assert cost.seconds(again) == pytest.approx(cost.seconds(stage) + 1.0)


def test_what_does_not_fit_or_divide_has_no_price() -> None:
    stage = StageShape(layers=0b011, before=0, tensor=2, in_flight=3)
    assert math.isfinite(three_layers(memory_bytes=162).seconds(stage))
    assert math.isinf(three_layers(memory_bytes=161).seconds(stage))
    assert math.isinf(three_layers().seconds(StageShape(layers=0b001, before=0, degree=3)))
    assert math.isinf(three_layers().seconds(StageShape(layers=0b010, before=0b001, tensor=1)))
