"""The oracle itself: counts that can be checked by hand, symmetry, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest
from strategies import best, chain_problem, context_of, flat_cluster, search

from planner.cluster import Cluster, Device, DeviceType, Link
from planner.costs.model import CostModel
from planner.graph import Edge, Layer, LayerGraph
from planner.optimizers._assignments import assignments, device_groups, interchangeable
from planner.optimizers.base import OPTIMIZERS, Clock, SearchContext
from planner.optimizers.exhaustive import count_plans, ideals, partitions
from planner.options import Replication, SearchOptions
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.workload import ReplicaMode


def graph_problem(layers: str, edges: list[str], *, colocated: tuple[tuple[str, ...], ...] = ()) -> Problem:
    """One-second layers named by letters on two devices."""
    base = chain_problem([(1.0, 2.0)], devices=2, num_microbatches=2)
    costs = {name: LayerCost(forward_s=1.0, backward_s=2.0) for name in layers}
    return Problem(
        graph=LayerGraph(
            layers=tuple(Layer(id=name) for name in layers),
            edges=tuple(Edge(source=a, target=b) for a, b in edges),
            colocated=colocated,
        ),
        profiles=(Profile(device_type="gpu", tables=(CostTable(microbatch_size=1, layers=costs),)),),
        cluster=base.cluster,
        workload=base.workload,
    )


@pytest.mark.parametrize("layers", range(1, 7))
def test_chains_have_binomially_many_partitions(layers: int) -> None:
    problem = chain_problem([(1.0, 1.0)] * layers, devices=2, num_microbatches=1)
    for stages in range(1, layers + 1):
        assert len(list(partitions(problem, stages))) == comb(layers - 1, stages - 1)


def test_partitions_of_a_diamond() -> None:
    """A -> B, C -> D: six ideals; two stages: one cut per proper ideal."""
    problem = graph_problem("ABCD", ["AB", "AC", "BD", "CD"])
    assert ideals(problem) == [0b0000, 0b0001, 0b0011, 0b0101, 0b0111, 0b1111]
    assert sorted(partitions(problem, 2)) == [(0b0001, 0b1110), (0b0011, 0b1100), (0b0101, 0b1010), (0b0111, 0b1000)]
    assert len(list(partitions(problem, 4))) == 2


def test_independent_layers_may_come_in_any_order() -> None:
    assert sorted(partitions(graph_problem("AB", []), 2)) == [(0b01, 0b10), (0b10, 0b01)]


def test_colocated_layers_share_a_stage() -> None:
    problem = graph_problem("ABCD", ["AB", "BC", "CD"], colocated=(("B", "C"),))
    assert sorted(partitions(problem, 2)) == [(0b0001, 0b1110), (0b0111, 0b1000)]
    assert list(partitions(problem, 4)) == []


def test_equal_devices_are_counted_once() -> None:
    problem = chain_problem([(1.0, 1.0)] * 3, devices=4, num_microbatches=4, microbatch_size=2)
    context = context_of(problem, SearchOptions())
    assert len(interchangeable(problem)) == 1
    # microbatches of 2: degrees 1 and 2, at most 4 devices: (1,1) (1,2) (2,1) (2,2)
    placed = list(assignments(context, 2, (2, 4)))
    assert [tuple(len(groups) for groups in a) for a in placed] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    equal = context_of(problem, SearchOptions(replication=Replication.EQUAL))
    assert [tuple(len(g) for g in a) for a in assignments(equal, 2, (2, 4))] == [(1, 1), (2, 2)]
    none = context_of(problem, SearchOptions(replication=Replication.NONE))
    assert len(list(assignments(none, 2, (2, 4)))) == 1
    dealt = context_of(problem, SearchOptions(replica_mode=ReplicaMode.DEALT))
    assert {len(groups) for a in assignments(dealt, 2, (2, 4)) for groups in a} == {1, 2, 3}


def test_a_network_that_tells_devices_apart_is_searched_whole() -> None:
    """Two nodes of two: exchanging within a node changes nothing, across nodes it does."""
    problem = chain_problem([(1.0, 1.0)] * 2, devices=4, num_microbatches=1)
    fast = [
        Link(a=a, b=b, bandwidth_bytes_per_s=100.0) for a, b in (("d0", "n0"), ("d1", "n0"), ("d2", "n1"), ("d3", "n1"))
    ]
    slow = Link(a="n0", b="n1", bandwidth_bytes_per_s=1.0)
    two_nodes = replace(problem, cluster=replace(problem.cluster, links=(*fast, slow)))
    assert [len(members) for members in interchangeable(two_nodes)] == [2, 2]
    placed = list(assignments(context_of(two_nodes, SearchOptions(replication=Replication.NONE)), 2, (1, 1)))
    assert len(placed) == 4  # the first stage on either node, the second beside it or on the other


def test_stages_hold_equal_devices() -> None:
    problem = chain_problem([(1.0, 1.0)], devices=1, num_microbatches=2, microbatch_size=2)
    mixed = replace(
        problem,
        cluster=flat_cluster(["gpu", "old"], memory_bytes={"gpu": 2**20, "old": 2**20}),
        profiles=(problem.profiles[0], replace(problem.profiles[0], device_type="old")),
    )
    placed = list(assignments(context_of(mixed, SearchOptions()), 1, (2, 2)))
    assert placed == [((("d0",),),), ((("d1",),),)]


def test_tensor_groups_are_consecutive_devices_of_one_type() -> None:
    problem = chain_problem([(1.0, 1.0)], devices=1, num_microbatches=1)
    kinds = ["gpu", "old", "gpu", "gpu", "old", "gpu", "gpu"]
    two = replace(
        problem,
        cluster=flat_cluster(kinds, memory_bytes={"gpu": 2**20, "old": 2**20}),
        profiles=(problem.profiles[0], replace(problem.profiles[0], device_type="old")),
        workload=replace(problem.workload, tensor=2),
    )
    assert device_groups(two) == [("d0", "d2"), ("d1", "d4"), ("d3", "d5")]


def test_the_best_is_first_and_ties_break_by_the_stated_rule() -> None:
    """Five equal layers on four stages (case H02): four plans tie; the lexicographically smallest sizes come first."""
    problem = chain_problem([(1.0, 0.0)] * 5, devices=4, num_microbatches=1)
    options = SearchOptions(replication=Replication.NONE, num_stages=4, num_finalists=4, schedule="1f1b")
    outcome = search("exhaustive", problem, options)
    sizes = [tuple(len(stage.layers) for stage in c.plan.stages) for c in outcome.candidates]
    assert sizes == [(1, 1, 1, 2), (1, 1, 2, 1), (1, 2, 1, 1), (2, 1, 1, 1)]
    assert {c.objective_s for c in outcome.candidates} == {5.0}
    assert outcome == search("exhaustive", problem, options)
    fewest = best(search("exhaustive", problem, SearchOptions()))
    assert fewest is not None
    assert len(fewest.plan.stages) == 1  # with one microbatch more stages gain nothing


def test_plans_that_cannot_run_are_left_out() -> None:
    problem = chain_problem([(1.0, 2.0)] * 2, devices=2, num_microbatches=2)
    table = CostTable(microbatch_size=1, layers={"L0": LayerCost(forward_s=1.0)})
    other = CostTable(microbatch_size=1, layers={"L1": LayerCost(forward_s=1.0)})
    split = replace(
        problem,
        cluster=flat_cluster(["a", "b"], memory_bytes={"a": 64, "b": 64}),
        profiles=(Profile(device_type="a", tables=(table,)), Profile(device_type="b", tables=(other,))),
    )
    outcome = search("exhaustive", split, SearchOptions())
    assert outcome.exact
    assert {tuple(stage.replicas for stage in c.plan.stages) for c in outcome.candidates} == {((("d0",),), (("d1",),))}
    apart = replace(split, cluster=replace(split.cluster, links=()))
    assert search("exhaustive", apart, SearchOptions()).candidates == ()


def test_the_clock_ends_the_search_without_a_claim() -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=2, num_microbatches=2)
    context = SearchContext(problem=problem, options=SearchOptions(), costs=CostModel(problem), clock=Clock(0.0))
    outcome = OPTIMIZERS["exhaustive"].search(context)
    assert outcome.candidates == ()
    assert (outcome.exact, outcome.finished, outcome.bound_s) == (False, False, None)


def test_count_is_what_is_priced() -> None:
    """3 layers, 2 devices, microbatches of 1 or 2 samples: 1 + 2 partitions; 1 stage: degrees {1}, {1, 2}."""
    problem = chain_problem([(1.0, 2.0)] * 3, devices=2, num_microbatches=2)
    free = replace(problem, workload=replace(problem.workload, microbatch_size=None))
    context = context_of(free, SearchOptions(schedule="1f1b", num_finalists=1000))
    # size 1: (1 stage, degree 1) + 2 cuts; size 2: (1 stage, degrees 1 and 2) + 2 cuts
    assert count_plans(context) == (1 + 2) + (2 + 2)
    assert len(OPTIMIZERS["exhaustive"].search(context).candidates) == 7


def test_devices_without_a_profile_stay_idle() -> None:
    cluster = Cluster(
        device_types=(DeviceType(name="gpu", memory_bytes=64), DeviceType(name="toaster", memory_bytes=64)),
        devices=(Device(id="t", type="toaster"), Device(id="g", type="gpu")),
    )
    problem = replace(chain_problem([(1.0, 2.0)], devices=1, num_microbatches=1), cluster=cluster)
    found = best(search("exhaustive", problem, SearchOptions()))
    assert found is not None
    assert found.plan.stages[0].replicas == (("g",),)
