"""`verify`: a good plan has no violation, and every way to spoil it is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import best, chain_problem, chain_problems, context_of, flat_cluster, search_options

from planner.codec import fingerprint
from planner.optimizers.base import OPTIMIZERS
from planner.options import SearchOptions
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import CostTable
from planner.verify import verify
from planner.workload import ReplicaMode


@pytest.fixture
def problem() -> Problem:
    """Four layers of 16 parameter bytes, each 64 bytes with gradients and optimizer; 150 bytes per device."""
    base = chain_problem(
        [(1.0, 2.0)] * 4, devices=4, num_microbatches=4, microbatch_size=2, parameter_bytes=[16] * 4, memory_bytes=150
    )
    return replace(base, graph=replace(base.graph, colocated=(("L0", "L1"),)))


@pytest.fixture
def good() -> Plan:
    """Two stages of two layers on two devices each."""
    return Plan(
        stages=(
            Stage(layers=("L0", "L1"), replicas=(("d0",), ("d1",))),
            Stage(layers=("L2", "L3"), replicas=(("d2",), ("d3",))),
        ),
        schedule="1f1b",
        microbatch_size=2,
        num_microbatches=4,
    )


def test_a_good_plan_has_no_violation(problem: Problem, good: Plan) -> None:
    assert verify(good, problem) == ()
    assert verify(replace(good, problem_fingerprint=fingerprint(problem)), problem) == ()


def stage(plan: Plan, number: int, **fields: object) -> Plan:
    """The plan with other fields in one stage."""
    changed = replace(plan.stages[number], **fields)  # type: ignore[arg-type]
    return replace(plan, stages=(*plan.stages[:number], changed, *plan.stages[number + 1 :]))


SPOILED: dict[str, tuple[Callable[[Plan], Plan], str, str]] = {
    "fingerprint": (lambda p: replace(p, problem_fingerprint="f" * 64), "fingerprint", "another problem"),
    "no stages": (lambda p: replace(p, stages=()), "stages", "no stages"),
    "unknown layer": (lambda p: stage(p, 0, layers=("L0", "L1", "L9")), "layers", "'L9' is not in the graph"),
    "layer twice": (lambda p: stage(p, 1, layers=("L1", "L2", "L3")), "layers", "'L1' is in 2 stages"),
    "layer missing": (lambda p: stage(p, 1, layers=("L2",)), "layers", "'L3' is in no stage"),
    "empty stage": (
        lambda p: replace(p, stages=(*p.stages, Stage(layers=(), replicas=(("d0",),)))),
        "stages",
        "stage 2 has no layers",
    ),
    "no devices": (lambda p: stage(p, 0, replicas=()), "devices", "stage 0 has no devices"),
    "empty group": (lambda p: stage(p, 0, replicas=((),)), "devices", "stage 0 has no devices"),
    "unknown device": (lambda p: stage(p, 0, replicas=(("d9",),)), "devices", "'d9', which the cluster does not have"),
    "unknown schedule": (lambda p: replace(p, schedule="magic"), "schedule", "'magic' is unknown: use one of"),
    "backwards": (
        lambda p: replace(p, stages=p.stages[::-1]),
        "order",
        "'L2' in stage 0 reads from 'L1' in the later stage 1",
    ),
    "colocated": (
        lambda p: stage(stage(p, 0, layers=("L0",)), 1, layers=("L1", "L2", "L3")),
        "colocated",
        "L0, L1 must share a stage",
    ),
    "batch": (
        lambda p: replace(p, num_microbatches=3),
        "batch",
        "2 x num_microbatches 3 = 6, but the global batch size is 8",
    ),
    "negative batch": (lambda p: replace(p, microbatch_size=-2, num_microbatches=-4), "batch", "they must be equal"),
    "uneven split": (
        lambda p: replace(p, microbatch_size=1, num_microbatches=8),
        "batch",
        "splits microbatches of 1 samples over 2 replicas",
    ),
    "group size": (lambda p: stage(p, 0, tensor=2), "devices", "a replica of 1 devices, tensor x context is 2"),
    "device twice": (
        lambda p: stage(p, 1, replicas=(("d1",), ("d3",))),
        "devices",
        "'d1' is in stage 0 and again in stage 1",
    ),
    "options": (lambda p: replace(p, schedule_options={"depth": 3}), "price", "takes no options"),
    "expert": (lambda p: stage(p, 0, expert=3), "degrees", "expert degree 3, but no layer"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_every_fault_is_named(problem: Problem, good: Plan, case: str) -> None:
    spoil, code, words = SPOILED[case]
    found = verify(spoil(good), problem)
    assert (code, True) in [(v.code, words in v.message) for v in found]


def test_memory_names_the_shortfall(problem: Problem, good: Plan) -> None:
    one = replace(
        good, stages=(Stage(layers=("L0", "L1", "L2"), replicas=(("d0",),)), Stage(layers=("L3",), replicas=(("d1",),)))
    )
    (violation,) = verify(one, problem)
    assert violation.code == "memory"
    assert "stage 0 needs 192 bytes per device, the limit is 150 bytes (short by 42)" in violation.message


def test_too_few_microbatches_for_dealt_replicas(problem: Problem, good: Plan) -> None:
    dealt = replace(good, replica_mode=ReplicaMode.DEALT, microbatch_size=8, num_microbatches=1)
    (violation,) = verify(dealt, problem)
    assert "deals 1 microbatches to 2 replicas" in violation.message


def test_devices_that_cannot_run_the_layers(problem: Problem, good: Plan) -> None:
    kinds = ["gpu", "gpu", "old", "old"]
    cluster = flat_cluster(kinds, memory_bytes={"gpu": 150, "old": 150})
    without = replace(problem, cluster=cluster)
    assert {v.code for v in verify(good, without)} == {"devices"}
    costs = {n: c for n, c in problem.profiles[0].tables[0].layers.items() if n != "L3"}
    partly = replace(problem.profiles[0], device_type="old", tables=(CostTable(microbatch_size=2, layers=costs),))
    found = verify(good, replace(without, profiles=(*problem.profiles, partly)))
    assert [v.message for v in found] == ["stage 1 has layers that its device type cannot run: move them"]


def test_a_missing_link_is_named(problem: Problem, good: Plan) -> None:
    (violation,) = verify(good, replace(problem, cluster=replace(problem.cluster, links=())))
    assert violation.code == "price"
    assert "no link joins them" in violation.message


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problem=chain_problems(), options=search_options(), data=st.data())
def test_moving_a_layer_out_of_order_is_found(problem: Problem, options: SearchOptions, data: st.DataObject) -> None:
    context = context_of(problem, replace(options, num_stages=min(2, len(problem.index))))
    found = best(OPTIMIZERS["exhaustive"].search(context))
    assume(found is not None)
    assert found is not None
    plan = found.plan
    assert verify(plan, problem) == ()
    assume(len(plan.stages) == 2)
    first, second = plan.stages
    moved = data.draw(st.sampled_from(first.layers))
    assume(moved != first.layers[-1])
    wrong = replace(
        plan,
        stages=(
            replace(first, layers=tuple(x for x in first.layers if x != moved)),
            replace(second, layers=(moved, *second.layers)),
        ),
    )
    assert "order" in {v.code for v in verify(wrong, problem)}
