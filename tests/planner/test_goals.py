"""Goals: latency, the largest batch, the fewest devices, fronts; each against brute force on small problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import L, chain_problem, flat_cluster
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import context_of

from planner import (
    InputError,
    Objective,
    Problem,
    Replication,
    SearchModel,
    SearchOptions,
    Status,
    Training,
)
from planner.codec import dumps, fingerprint, loads
from planner.goals import GOALS
from planner.goals.base import changed_problem
from planner.optimizers.base import OPTIMIZERS
from planner.options import SEARCHED_OBJECTIVES, Front
from planner.result import PlanResult
from planner.service import answer, estimate, plan
from planner.simulation.estimate import simulate_plan
from planner.verify import verify

FOUR = [L(f=1, b=2, p=30, a=40, o=8), L(f=3, b=5, p=10, a=20, o=8), L(f=2, b=4, p=60, a=10, o=8), L(f=1, b=1, a=30)]


def four(**options: Any) -> Problem:
    return chain_problem(FOUR, **{"devices": 3, "microbatches": 4, "microbatch_size": 2, "memory": 400} | options)


def asked(objective: Objective, **options: Any) -> SearchOptions:
    return SearchOptions(objective=objective, **options)


def test_the_registry_has_every_goal() -> None:
    assert set(GOALS.names()) == {o.value for o in Objective} - {o.value for o in SEARCHED_OBJECTIVES}


@pytest.mark.parametrize("objective", [o for o in Objective if o is not Objective.MAX_KV_TOKENS])
def test_every_answer_verifies_for_the_problem_that_it_carries(objective: Objective) -> None:
    problem = four()
    found = answer(problem, asked(objective))
    assert found.result.plan is not None
    assert found.result.report.objective == objective.value
    assert verify(found.result.plan, found.problem) == ()
    assert found.result.plan.problem_fingerprint == fingerprint(found.problem)
    assert estimate(found.problem, found.result.plan) == found.result.estimate
    again = loads(PlanResult, dumps(found.result))
    assert again == found.result
    assert changed_problem(problem, again) == found.problem


@pytest.mark.parametrize("objective", [o for o in Objective if o not in SEARCHED_OBJECTIVES])
def test_plan_sends_goals_to_answer(objective: Objective) -> None:
    problem = four(inference=True) if objective is Objective.MAX_KV_TOKENS else four()
    with pytest.raises(InputError, match=r"answer|kv_bytes"):
        plan(problem, asked(objective))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (asked(Objective.LATENCY, max_iteration_time_s=1.0), "max_iteration_time_s is for"),
        (asked(Objective.MIN_DEVICES, max_iteration_time_s=0.0), "max_iteration_time_s is 0.0"),
        (asked(Objective.MAX_KV_TOKENS), "this workload trains"),
    ],
)
def test_options_that_make_no_sense_are_named(options: SearchOptions, words: str) -> None:
    with pytest.raises(InputError, match=words):
        answer(four(), options)


# latency


def test_latency_is_one_microbatch_through_all_stages() -> None:
    """Without transfers any number of stages takes the sum of all passes."""
    found = answer(four(memory=2**30), asked(Objective.LATENCY))
    assert found.problem.workload.global_batch_size == 2
    assert found.result.plan is not None
    assert found.result.plan.num_microbatches == 1
    assert found.result.estimate is not None
    halves = found.result.plan.stages[0].replicas
    assert found.result.estimate.iteration_time_s == pytest.approx(0.019 / len(halves))


def test_latency_without_a_size_is_that_of_one_sample() -> None:
    problem = four(inference=True)
    free = problem.with_workload(replace(problem.workload, microbatch_size=None))
    found = answer(free, asked(Objective.LATENCY))
    assert found.problem.workload.global_batch_size == 1
    assert found.result.estimate is not None
    assert found.result.estimate.iteration_time_s == pytest.approx(0.0035)


def test_slow_links_make_one_stage_the_fastest_for_one_microbatch() -> None:
    options = asked(Objective.LATENCY, replication=Replication.NONE)
    slow = answer(four(memory=2**30, bandwidth_per_ms=1.0), options)
    assert slow.result.plan is not None
    assert len(slow.result.plan.stages) == 1
    many = plan(four(memory=2**30), SearchOptions(replication=Replication.NONE))
    assert many.plan is not None
    assert len(many.plan.stages) > 1


# max_batch and min_devices


@st.composite
def small_chains(draw: st.DrawFn) -> Problem:
    layers = [
        L(f=draw(st.integers(1, 4)), b=draw(st.integers(1, 4)), p=draw(st.integers(0, 30)), a=draw(st.integers(1, 20)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    return chain_problem(
        layers,
        devices=draw(st.integers(1, 3)),
        microbatches=draw(st.integers(1, 3)),
        memory=draw(st.integers(20, 150)),
    )


REPLICATIONS = st.sampled_from(Replication)


def fits(problem: Problem, options: SearchOptions) -> bool:
    """Whether any plan at all fits, by enumeration."""
    context = context_of(problem, replace(options, optimizer="exhaustive", schedule="1f1b"))
    return bool(OPTIMIZERS["exhaustive"].search(context).candidates)


def at_size(problem: Problem, size: int, count: int) -> Problem:
    work = replace(problem.workload, global_batch_size=size * count, microbatch_size=size, num_microbatches=count)
    return problem.with_workload(work)


@given(problem=small_chains(), replication=REPLICATIONS)
@settings(max_examples=10)
def test_the_largest_batch_is_that_of_enumeration(problem: Problem, replication: Replication) -> None:
    count = problem.workload.global_batch_size
    options = asked(Objective.MAX_BATCH, replication=replication, schedule="1f1b")
    sizes = [size for size in range(1, 160) if fits(at_size(problem, size, count), options)]
    assume(not sizes or max(sizes) < 150)
    found = answer(problem, options)
    if not sizes:
        assert found.result.plan is None
        assert found.result.report.status is Status.INFEASIBLE
        return
    attained = found.result.report.attained
    assert attained is not None
    assert (attained.value, attained.bound, attained.proven) == (max(sizes), max(sizes), True)
    assert found.problem.workload.global_batch_size == max(sizes) * count
    assert found.result.plan is not None
    assert found.result.plan.microbatch_size == max(sizes)


def test_without_a_number_of_microbatches_every_stage_of_the_longest_pipeline_gets_one() -> None:
    problem = four()
    free = problem.with_workload(replace(problem.workload, microbatch_size=None))
    found = answer(free, asked(Objective.MAX_BATCH))
    assert found.result.plan is not None
    assert found.result.plan.num_microbatches == 3


def test_a_model_without_activations_has_no_largest_batch() -> None:
    problem = chain_problem([L(f=1, b=2, p=10)] * 2, devices=1, microbatches=2, memory=100)
    attained = answer(problem, asked(Objective.MAX_BATCH)).result.report.attained
    assert attained is not None
    assert attained.value * 2 >= 2**28
    assert attained.method == "none"


@given(problem=small_chains(), replication=REPLICATIONS)
@settings(max_examples=20)
def test_the_fewest_devices_are_those_of_enumeration(problem: Problem, replication: Replication) -> None:
    options = asked(Objective.MIN_DEVICES, replication=replication, schedule="1f1b")
    total = len(problem.cluster.devices)
    enough = [n for n in range(1, total + 1) if fits(on_first(problem, n), options)]
    found = answer(problem, options)
    if not enough:
        assert found.result.report.status is Status.INFEASIBLE
        return
    attained = found.result.report.attained
    assert attained is not None
    assert (attained.value, attained.proven) == (min(enough), True)
    assert len(found.problem.cluster.devices) == min(enough)


def on_first(problem: Problem, number: int) -> Problem:
    """On equal devices it does not matter which."""
    cluster = flat_cluster(number, memory=problem.cluster.device_types[0].memory_bytes)
    return Problem(graph=problem.graph, profiles=problem.profiles, cluster=cluster, workload=problem.workload)


EQUAL_LAYERS = [L(f=1, b=2, p=1)] * 6
"""1F1B pipelines of these on 1, 2, 3 devices take 18 M, 9 (M + 1), 6 (M + 2) ms."""


@pytest.mark.parametrize(("limit_ms", "devices"), [(145, 1), (143, 2), (81, 2), (80, 3), (60, 3)])
def test_a_time_limit_needs_more_devices(limit_ms: float, devices: int) -> None:
    problem = chain_problem(EQUAL_LAYERS, devices=4, microbatches=8)
    options = asked(
        Objective.MIN_DEVICES,
        max_iteration_time_s=limit_ms * 1e-3 + 1e-9,
        search_model=SearchModel.CLOSED,
        replication=Replication.NONE,
        schedule="1f1b",
    )
    found = answer(problem, options)
    attained = found.result.report.attained
    assert attained is not None
    assert (attained.value, attained.proven) == (devices, True)
    assert found.result.estimate is not None
    assert found.result.estimate.iteration_time_s <= limit_ms * 1e-3 + 1e-9


def test_a_time_limit_out_of_reach_is_an_answer() -> None:
    problem = chain_problem(EQUAL_LAYERS, devices=2, microbatches=8)
    found = answer(problem, asked(Objective.MIN_DEVICES, max_iteration_time_s=1e-3, replication=Replication.NONE))
    assert found.result.plan is None
    assert found.result.report.status is Status.INFEASIBLE
    assert found.result.report.infeasibility is not None
    assert found.result.report.infeasibility.constraint == "iteration_time"


# pareto


@given(problem=small_chains(), front=st.sampled_from(Front), replication=REPLICATIONS)
@settings(max_examples=8)
def test_the_front_is_that_of_enumeration(problem: Problem, front: Front, replication: Replication) -> None:
    """Every plan simulated: `exhaustive` with all plans as finalists, under one schedule."""
    options = asked(
        Objective.PARETO,
        front=front,
        replication=replication,
        optimizer="exhaustive",
        schedule="1f1b",
        num_finalists=1000,
    )
    context = context_of(problem, options)
    everything = OPTIMIZERS["exhaustive"].search(replace(context, options=plain(options))).candidates
    assume(len(everything) < 1000)
    costs = set()
    for candidate in everything:
        _, priced = simulate_plan(problem, candidate.plan)
        costs.add((priced.iteration_time_s, amount(priced.num_devices_used, priced.peak_memory_bytes, front)))
    found = answer(problem, options).result
    if not costs:
        assert found.plan is None
        return
    assert found.estimate is not None
    members = [
        (
            found.estimate.iteration_time_s,
            amount(found.estimate.num_devices_used, found.estimate.peak_memory_bytes, front),
        )
    ]
    members += [
        (other.iteration_time_s, amount(other.num_devices_used, other.peak_memory_bytes, front))
        for other in found.runners_up
    ]
    assert [(round(seconds, 9), n) for seconds, n in members] == undominated(costs)
    for other in found.runners_up:
        assert verify(other.plan, problem) == ()
        assert other.certificates
        assert other.reason.startswith("on the front")


def plain(options: SearchOptions) -> SearchOptions:
    return replace(options, objective=Objective.ITERATION_TIME)


def amount(devices: int, peak_bytes: int, front: Front) -> int:
    return devices if front is Front.DEVICES else peak_bytes


def undominated(costs: set[tuple[float, int]]) -> list[tuple[float, int]]:
    """By the definition, with times that differ by rounding taken as equal."""
    rounded = {(round(seconds, 9), amount) for seconds, amount in costs}
    front = [c for c in rounded if not any(o != c and o[0] <= c[0] and o[1] <= c[1] for o in rounded)]
    return sorted(front)


def test_faster_links_move_the_front() -> None:
    """With slow links the fastest plan uses fewer devices."""
    options = asked(Objective.PARETO, replication=Replication.NONE)
    fast, slow = (answer(four(memory=2**30, bandwidth_per_ms=b), options).result for b in (1e9, 1.0))
    assert fast.estimate is not None
    assert slow.estimate is not None
    assert fast.estimate.num_devices_used > slow.estimate.num_devices_used
    assert len(fast.runners_up) > len(slow.runners_up)


def test_mixtures_of_kinds_are_looked_at() -> None:
    """A device with much memory and two with little: one of the former suffices."""
    problem = four(devices=3, memory=2**30)
    assert isinstance(problem.workload, Training)
    free = {"d0": 60, "d1": 60, "d2": 400}
    devices = tuple(replace(d, free_memory_bytes=free[d.id]) for d in problem.cluster.devices)
    uneven = Problem(
        graph=problem.graph,
        profiles=problem.profiles,
        cluster=replace(problem.cluster, devices=devices),
        workload=problem.workload,
    )
    found = answer(uneven, asked(Objective.MIN_DEVICES, replication=Replication.NONE))
    assert [device.id for device in found.problem.cluster.devices] == ["d2"]
    assert found.result.report.attained is not None
    assert found.result.report.attained.value == 1
