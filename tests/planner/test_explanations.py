"""Explanations: the critical path adds up, names what bounds the time, and what-ifs and remedies are true."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from builders import L, chain_problem, flat_cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import chain_problems

from planner import Cluster, Device, DeviceType, Link, Problem, Replication, SearchOptions, Status
from planner.checks import check_cluster
from planner.costs.model import CostModel
from planner.explanations.bottleneck import explained_time
from planner.explanations.critical_path import critical_path
from planner.explanations.what_ifs import what_ifs
from planner.result import Explanation
from planner.service import answer, plan
from planner.simulation.engine import simulate
from planner.simulation.estimate import simulate_plan
from planner.simulation.program import build
from planner.targets import TARGETS
from planner.variations import grown, only, unit
from planner.workload import Recomputation

QUICK = SearchOptions(replication=Replication.NONE, schedule="1f1b")


def explained(problem: Problem, options: SearchOptions = QUICK) -> Explanation:
    found = answer(problem, options).result.explanation
    assert found is not None
    return found


def shares(explanation: Explanation) -> dict[str, float]:
    return {each.kind: each.share for each in explanation.path}


@given(problem=chain_problems(most_samples=6, one_type=True))
@settings(max_examples=25)
def test_the_critical_path_is_as_long_as_the_iteration(problem: Problem) -> None:
    found = plan(problem, SearchOptions(optimizer="chain_dp", num_finalists=2))
    if found.plan is None or found.estimate is None:
        return
    program = build(problem, CostModel(problem).price(found.plan))
    steps = critical_path(program.tasks, simulate(program.tasks, program.num_resources))
    assert all(step.end_s >= step.start_s for step in steps)
    assert all(a.end_s == b.start_s for a, b in pairwise(steps))
    if steps:
        assert (steps[0].start_s, steps[-1].end_s) == (0.0, pytest.approx(found.estimate.iteration_time_s))
    told = explained_time(problem, found.plan)
    assert sum(each.seconds for each in told.path) == pytest.approx(found.estimate.iteration_time_s)


def test_equal_stages_wait_for_filling_and_draining() -> None:
    """4 stages of 3 ms, 8 microbatches: 24 ms of the pivot's own passes, 9 ms until and after."""
    told = explained(chain_problem([L(f=1, b=2, p=1)] * 4, devices=4, microbatches=8), replace(QUICK, num_stages=4))
    assert told.bottleneck == "pivot"
    assert shares(told) == pytest.approx({"pivot": 24 / 33, "bubble": 9 / 33})


def test_a_slow_stage_is_the_pivot() -> None:
    layers = [L(f=1, b=1, p=1), L(f=6, b=12, p=1), L(f=1, b=1, p=1)]
    told = explained(chain_problem(layers, devices=3, microbatches=8), replace(QUICK, num_stages=3))
    assert (told.bottleneck, told.pivot_stage) == ("pivot", 1)
    assert "pivot stage 1" in told.message


def test_few_microbatches_are_a_bubble() -> None:
    told = explained(chain_problem([L(f=1, b=2, p=1)] * 6, devices=6, microbatches=2), replace(QUICK, num_stages=6))
    assert told.bottleneck == "bubble"
    assert told.what_ifs[0].change.startswith("one more microbatch")
    assert told.what_ifs[0].gain == pytest.approx((3 / 8) / (2 / 7) - 1)


def test_a_narrow_link_is_named_and_widening_it_helps_most() -> None:
    layers = [L(f=1, b=1, p=1, o=40), L(f=1, b=1, p=1)]
    problem = chain_problem(layers, devices=2, microbatches=8, bandwidth_per_ms=4.0)
    told = explained(problem, replace(QUICK, num_stages=2))
    assert told.bottleneck == "transfer"
    assert told.what_ifs[0].change == "links 2 times as wide"
    assert told.what_ifs[0].gain > 0.5


def test_a_large_all_reduce_is_named() -> None:
    problem = chain_problem(
        [L(f=2, b=2, p=1000)], devices=2, microbatches=1, microbatch_size=2, bandwidth_per_ms=50.0, gradient_bytes=4.0
    )
    found = plan(problem)
    assert found.plan is not None
    both = replace(found.plan.stages[0], replicas=(("d0",), ("d1",)))
    told = explained_time(problem, replace(found.plan, stages=(both,)))
    assert told.bottleneck == "all_reduce"


def test_what_ifs_are_what_the_changed_problem_gives() -> None:
    """Memory keeps the layers from an even split; with twice as much the even split is found."""
    layers = [L(f=1, b=2, p=1, a=10)] * 4
    problem = chain_problem(layers, devices=2, microbatches=4, memory=35)
    options = replace(QUICK, num_stages=2)
    found = plan(problem, options)
    assert found.plan is not None
    assert found.estimate is not None
    tried = {w.change: w for w in what_ifs(problem, found.plan, found.estimate, options, 60.0)}
    more = plan(chain_problem(layers, devices=2, microbatches=4, memory=70), options)
    assert more.estimate is not None
    memory = tried["2 times the memory per device"]
    assert memory.replanned
    assert memory.iteration_time_s == pytest.approx(more.estimate.iteration_time_s)
    assert memory.gain == pytest.approx(found.estimate.iteration_time_s / more.estimate.iteration_time_s - 1)
    longer = problem.with_workload(replace(problem.workload, global_batch_size=5))
    _, five = simulate_plan(longer, replace(found.plan, num_microbatches=5, problem_fingerprint=""))
    assert tried["one more microbatch (global batch 5)"].iteration_time_s == five.iteration_time_s
    gains = [w.gain for w in what_ifs(problem, found.plan, found.estimate, options, 60.0)]
    assert gains == sorted(gains, reverse=True)


@given(
    layers=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), min_size=1, max_size=5),
    devices=st.integers(1, 3),
    microbatches=st.integers(1, 4),
    memory=st.integers(5, 80),
)
@settings(max_examples=25)
def test_every_remedy_is_a_plan_for_the_changed_problem(
    layers: list[tuple[int, int]], devices: int, microbatches: int, memory: int
) -> None:
    made = [L(f=1, b=2, p=p, a=a) for p, a in layers]
    fields: dict[str, Any] = {"devices": devices, "microbatches": microbatches}
    result = plan(chain_problem(made, memory=memory, **fields), QUICK)
    if result.report.status is not Status.INFEASIBLE:
        return
    reason = result.report.infeasibility
    assert reason is not None
    assert reason.shortfall_bytes > 0
    assert reason.remedies
    by_kind = {remedy.kind: remedy for remedy in reason.remedies}
    assert by_kind["memory"].peak_memory_bytes == memory + reason.shortfall_bytes
    for kind in by_kind.keys() - {"memory"}:
        assert by_kind[kind].peak_memory_bytes <= memory
    exactly = chain_problem(made, memory=memory + reason.shortfall_bytes, **fields)
    assert plan(exactly, QUICK).plan is not None
    one_less = chain_problem(made, memory=memory + reason.shortfall_bytes - 1, **fields)
    assert plan(one_less, QUICK).report.status is Status.INFEASIBLE


@pytest.mark.parametrize("target", ["", "deepspeed", "torch_pipelining"])
def test_remedies_are_for_the_target(target: str) -> None:
    """Too much is kept in flight; a chain of modules that selective and full recomputation would help."""
    problem = chain_problem([L(f=1, b=2, p=1, a=10)] * 4, devices=2, microbatches=4, memory=18)
    table = problem.profiles[0].tables[0]
    costs = {name: replace(cost, selective_activation_bytes=2) for name, cost in table.layers.items()}
    profiles = (replace(problem.profiles[0], tables=(replace(table, layers=costs),)),)
    reason = plan(replace(problem, profiles=profiles), replace(QUICK, target=target)).report.infeasibility
    assert reason is not None
    kinds = {remedy.plan.stages[0].recomputation for remedy in reason.remedies if remedy.kind == "recomputation"}
    allowed = TARGETS[target].recomputations if target else tuple(Recomputation)
    assert kinds == ({Recomputation.SELECTIVE} if Recomputation.SELECTIVE in allowed else {Recomputation.FULL})


# Clusters with one thing changed


def nodes(count: int, size: int) -> Cluster:
    """Nodes with a switch each, joined by a fabric."""
    devices = [Device(id=f"n{n}d{i}", type="device") for n in range(count) for i in range(size)]
    links = [Link(a=d.id, b=f"switch{d.id[1]}", bandwidth_bytes_per_s=8.0) for d in devices]
    links += [Link(a=f"switch{n}", b="fabric", bandwidth_bytes_per_s=1.0) for n in range(count)]
    return Cluster(
        device_types=(DeviceType(name="device", memory_bytes=1),), devices=tuple(devices), links=tuple(links)
    )


def test_a_flat_cluster_grows_by_devices_and_one_of_nodes_by_nodes() -> None:
    flat, layered = grown(flat_cluster(3), 2), grown(nodes(2, 4), 1)
    assert flat is not None
    assert layered is not None
    check_cluster(flat)
    check_cluster(layered)
    assert len(flat.devices) == 5
    assert unit(nodes(2, 4)) == ("n1d0", "n1d1", "n1d2", "n1d3")
    assert len(layered.devices) == 12
    assert len(layered.links) == 15


def test_a_lonely_device_cannot_grow() -> None:
    assert grown(flat_cluster(1), 1) is None


def test_removed_devices_take_switches_without_use_along() -> None:
    left = only(nodes(2, 2), {"n0d0", "n0d1"})
    check_cluster(left)
    assert [device.id for device in left.devices] == ["n0d0", "n0d1"]
    assert {end for link in left.links for end in (link.a, link.b)} == {"n0d0", "n0d1", "switch0"}
