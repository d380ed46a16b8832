"""`least_bottleneck` and overflow streaming in the `blocking` model."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.model import CostModel
from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.blocking import BlockingCost, SharedTensor, blocking_cost
from planner.errors import InputError
from planner.ideals import Groups, set_of
from planner.optimizers.stage_cost_dp import least_bottleneck
from planner.problem import Problem
from profiles.importers import read_text

INSTANCES = Path(__file__).parent.parent / "instances"
OPTIMA = {
    ("bert24_inference", 2): 47.4790, ("bert24_inference", 4): 24.9169, ("bert24_inference", 8): 14.2039,
    ("bert24_inference", 16): 7.1959, ("resnet50_inference", 2): 101.2814, ("resnet50_inference", 4): 50.9899,
    ("resnet50_inference", 8): 26.7612, ("resnet50_inference", 16): 18.9979,
}  # fmt: skip
"""Milliseconds per sample on accelerators without CPU and memory limit: the authors' own program."""


def shipped(name):
    model = read_text((INSTANCES / "device-placement" / f"{name}.json").read_text())
    return Problem(graph=model.graph, profiles=model.profiles, cluster=model.cluster, workload=model.workload)


@pytest.mark.parametrize("name", ["bert24_inference", "resnet50_inference"])
def test_published_optima_of_the_blocking_model(name):
    problem = shipped(name)
    cost = blocking_cost(problem, CostModel(problem), 1)
    for (other, devices), wanted in OPTIMA.items():
        if other == name:
            found = least_bottleneck(cost, cost.groups, devices)
            assert found.value_s * 1e3 == pytest.approx(wanted, rel=1e-5)
            assert found.value_s == max(cost.seconds(stage) for stage in found.stages)
            assert len(found.stages) <= devices


def test_streaming_costs_the_excess_over_the_bandwidth():
    """Two layers of 10 bytes, a tensor of 4 between them, 15 bytes of memory: 24 - 15 bytes at 3 bytes a second."""
    cost = BlockingCost(
        groups=groups_of(2, [(0, 1)]),
        work_s=[1, 1],
        weight_bytes=[10, 10],
        tensors=(SharedTensor(maker=0, readers=(1,), ends=3, num_bytes=4, cost_s=0.5),),
        memory_bytes=15,
        streaming_bytes_per_s=3,
    )
    both, first = StageShape(layers=3, before=0), StageShape(layers=1, before=0)
    assert cost.seconds(both) == 2 + 9 / 3
    assert cost.seconds(first) == 1.5
    assert least_bottleneck(cost, cost.groups, 2).value_s == 1.5
    refused = replace(cost, streaming_bytes_per_s=None)
    assert math.isinf(refused.seconds(both))
    assert refused.seconds(first) == 1.5
    assert least_bottleneck(refused, cost.groups, 1) is None


def test_tensors_live_from_their_maker_to_their_last_reader():
    """0 -> 1 -> 2 with tensors of 5 and 7, one of 2 from 0 to 2 that waits only where both ends are inside."""
    tensors = (
        SharedTensor(maker=0, readers=(1,), ends=3, num_bytes=5, cost_s=0),
        SharedTensor(maker=1, readers=(2,), ends=6, num_bytes=7, cost_s=0),
        SharedTensor(maker=0, readers=(2,), ends=5, num_bytes=2, cost_s=0),
    )
    chain = groups_of(3, [(0, 1), (1, 2)])
    cost = BlockingCost(
        groups=chain, work_s=[0] * 3, weight_bytes=[0] * 3, tensors=tensors, memory_bytes=0, streaming_bytes_per_s=1
    )
    peaks = {0b001: 7, 0b010: 12, 0b011: 12, 0b110: 12, 0b111: 14, 0b100: 9}
    assert {layers: cost.overflow_s(layers) for layers in peaks} == peaks


def groups_of(count, edges):
    return Groups(
        layers=tuple((i,) for i in range(count)),
        of_layer=tuple(range(count)),
        before=tuple(set_of(a for a, b in edges if b == i) for i in range(count)),
        after=tuple(set_of(b for a, b in edges if a == i) for i in range(count)),
    )


@st.composite
def costs(draw):
    count = draw(st.integers(1, 5))
    possible = list(itertools.combinations(range(count), 2))
    edges = sorted(draw(st.lists(st.sampled_from(possible), unique=True))) if possible else []
    figure = st.integers(0, 9)
    tensors = []
    for maker in sorted({a for a, _ in edges}):
        readers = tuple(b for a, b in edges if a == maker)
        ends = set_of((maker, *readers))
        tensors.append(
            SharedTensor(maker=maker, readers=readers, ends=ends, num_bytes=draw(figure), cost_s=draw(figure))
        )
    return BlockingCost(
        groups=groups_of(count, edges),
        work_s=[draw(figure) for _ in range(count)],
        weight_bytes=[draw(figure) for _ in range(count)],
        tensors=tuple(tensors),
        memory_bytes=draw(st.sampled_from([5, 12, math.inf])),
        streaming_bytes_per_s=draw(st.sampled_from([None, 1, 4])),
    )


@given(cost=costs(), devices=st.integers(1, 4))
def test_the_least_bottleneck_agrees_with_brute_force(cost, devices):
    ideals = [i for i in range(cost.groups.everything + 1) if cost.groups.is_ideal(i)]
    wanted = math.inf
    for count in range(1, devices + 1):
        for cuts in itertools.combinations(ideals, count + 1):
            if cuts[0] or cuts[-1] != cost.groups.everything or any(a & ~b for a, b in itertools.pairwise(cuts)):
                continue
            shapes = [StageShape(layers=b & ~a, before=a) for a, b in itertools.pairwise(cuts)]
            wanted = min(wanted, max(cost.seconds(shape) for shape in shapes))
    found = least_bottleneck(cost, cost.groups, devices)
    assert (found.value_s if found else math.inf) == wanted


@given(cost=costs(), devices=st.integers(1, 4))
def test_more_memory_and_streaming_never_hurt(cost, devices):
    def value(other):
        found = least_bottleneck(other, cost.groups, devices)
        return found.value_s if found else math.inf

    assert value(replace(cost, memory_bytes=cost.memory_bytes + 5)) <= value(cost)
    assert value(replace(cost, streaming_bytes_per_s=8)) <= value(cost)


def test_clusters_with_several_bandwidths_are_refused():
    problem = shipped("bert24_inference")
    first, *others = problem.cluster.links
    slow = replace(first, bandwidth_bytes_per_s=first.bandwidth_bytes_per_s / 2)
    two = replace(problem, cluster=replace(problem.cluster, links=(slow, *others)))
    with pytest.raises(InputError, match="one bandwidth between all devices"):
        blocking_cost(two, CostModel(two), 1)
