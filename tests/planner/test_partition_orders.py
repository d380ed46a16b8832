"""Upper bounds: orders are topological, searches are valid, repeatable and never below the optimum."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_partitions import optimum_s, random_instance, value_s

from planner.ideals import bits, group_layers
from planner.partition.annealing import anneal
from planner.partition.exact import heuristic
from planner.partition.local_search import Stages, descend, kick
from planner.partition.orders import levels, topological_orders, within_stages
from planner.partition.upper_bound import boundaries, order_search, pool_search

SEEDS = st.integers(0, 10**9)


@given(SEEDS)
def test_orders_are_topological(seed):
    instance = random_instance(seed)
    found = list(topological_orders(instance, seed, 4))
    assert found == list(topological_orders(instance, seed, 4))
    for order in found:
        done = 0
        for g in order:
            assert not instance.groups.before[g] & ~done
            done |= 1 << g
        assert done == instance.groups.everything


@given(SEEDS)
def test_searches_find_valid_partitions_and_the_same_ones_again(seed):
    instance = random_instance(seed, most=7)
    best = optimum_s(instance)
    for search in (pool_search(instance, seed=seed), order_search(instance, seed=seed, max_iterations=3)):
        if search is not None:
            assert value_s(instance, search.stages) == pytest.approx(search.value_s)
            assert search.value_s >= best * (1 - 1e-9)
    assert order_search(instance, seed=seed, max_iterations=3) == search
    found = heuristic(instance, seed=seed, max_iterations=2)
    assert found is None or value_s(instance, found.stages) == pytest.approx(found.value_s)


@given(SEEDS)
def test_moves_keep_a_partition_and_its_loads(seed):
    instance = without_memory(random_instance(seed))
    start = pool_search(instance, seed=seed)
    if start is None or math.isinf(start.value_s):
        return
    stages = Stages(instance, start)
    draw = random.Random(seed)
    kick(stages, draw, 4)
    kicked = sorted(stages.load, reverse=True)
    descend(stages, draw)
    assert sorted(stages.load, reverse=True) <= [load + 1e-9 for load in kicked]
    found = stages.partition()
    if found is not None:
        assert value_s(instance, found.stages) == pytest.approx(found.value_s)
        if len(found.stages) == len(stages.load):
            assert max(stages.load) == pytest.approx(found.value_s)


@given(SEEDS)
def test_annealing_keeps_a_partition_and_never_loses_the_start(seed):
    instance = without_memory(random_instance(seed))
    start = pool_search(instance, seed=seed)
    if start is None:
        return
    found = anneal(Stages(instance, start), random.Random(seed), 2000)
    assert found is not None
    assert value_s(instance, found.stages) == pytest.approx(found.value_s)
    assert found.value_s <= start.value_s * (1 + 1e-9)
    assert anneal(Stages(instance, start), random.Random(seed), 2000) == found


def test_annealing_leaves_a_local_optimum(wide_graph):
    start = Stages(wide_graph, pool_search(wide_graph))
    descend(start, random.Random(0))
    found = anneal(Stages(wide_graph, start.partition()), random.Random(0), 200_000)
    assert found.value_s < max(start.load) * 0.99


def test_orders_within_stages_run_through_them(wide_graph):
    best = pool_search(wide_graph)
    sets = [stage for _, stage in best.stages]
    order = within_stages(wide_graph.groups, sets, lambda g: -g)
    done, ends = 0, set()
    for g in order:
        done |= 1 << g
        ends.add(done)
    assert ends >= set(boundaries(best))


def test_levels_count_the_longest_path(wide_graph):
    found = levels(wide_graph.groups)
    for g, before in enumerate(wide_graph.groups.before):
        assert found[g] == max((found[p] + 1 for p in bits(before)), default=0)


def test_local_search_improves_on_one_pass_over_a_pool(wide_graph):
    first = pool_search(wide_graph, rounds=0, num_random=0)
    longer = order_search(wide_graph, max_iterations=10)
    assert longer.value_s < first.value_s * 0.97


def test_an_expired_clock_ends_the_search(wide_graph):
    assert pool_search(wide_graph, expired=lambda: True) is None
    first = pool_search(wide_graph)
    assert order_search(wide_graph, max_iterations=100, expired=lambda: True, start=first) == first


def without_memory(instance):
    classes = tuple(dataclasses.replace(c, size_bytes=[0] * len(instance.groups)) for c in instance.classes)
    return dataclasses.replace(instance, classes=classes)


@pytest.fixture(name="wide_graph", scope="module")
def _wide_graph():
    return layered(80, 8, 0.5)


def layered(count, width, weight, num_devices=8, seed=3):
    """Random layers of `width` groups, each reading 1 to 3 of the layer before; log-normal work and tensors."""
    from planner.graph import Edge, GraphIndex, Layer, LayerGraph
    from planner.partition.instance import BottleneckInstance, Cut, DeviceClass

    draw = random.Random(seed)
    edges = [
        Edge(source=str(source), target=str(g))
        for g in range(width, count)
        for source in draw.sample(range(g // width * width - width, g // width * width), draw.randint(1, 3))
    ]
    index = GraphIndex(LayerGraph(layers=tuple(Layer(id=str(g)) for g in range(count)), edges=tuple(edges)))
    groups = group_layers(index)
    return BottleneckInstance(
        groups=groups,
        cuts=tuple(
            Cut(
                groups=sum(1 << groups.of_layer[i] for i in (tensor.source, *tensor.targets)),
                cost_s=weight * draw.lognormvariate(0, 0.6),
            )
            for tensor in index.tensors
        ),
        classes=(
            DeviceClass(
                count=num_devices,
                work_s=[draw.lognormvariate(0, 0.6) for _ in range(count)],
                size_bytes=[0] * count,
                limit_bytes=0,
            ),
        ),
    )
