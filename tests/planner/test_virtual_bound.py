"""The bound on plans with several stages per device group: never above a plan, exact where it can be worked out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from schedule_shapes import legal_shapes
from strategies import RELATIVE, chain_problem, context_of, quarters, words

from planner.bounds import BOUNDS, BoundQuery
from planner.bounds._crowded import few_microbatches, moments_of
from planner.options import Decision, SearchOptions
from planner.plan import Plan, Stage
from planner.portfolio import query_of
from planner.problem import Problem
from planner.schedules import SCHEDULES, PipelineShape, Placement
from planner.service import plan
from planner.simulation.estimate import simulate_plan
from planner.verify import verify
from planner.workload import Recomputation

VIRTUAL = tuple(s.name for s in SCHEDULES if s.placement in (Placement.LOOP, Placement.V))
KILO = 1000
SEARCHED = (Decision.RECOMPUTATION, Decision.ZERO)


def bound_s(problem: Problem, schedule: str, upper_s: float, options: SearchOptions | None = None) -> float:
    """What no plan under the schedule undercuts."""
    found = BOUNDS["virtual"].iteration_s(query(problem, schedule, upper_s, options))
    assert found is not None
    return found


def query(problem: Problem, schedule: str, upper_s: float, options: SearchOptions | None = None) -> BoundQuery:
    asked = query_of(context_of(problem, options or SearchOptions()), iteration_upper_s=upper_s)
    return replace(asked, schedules=(schedule,))


def plan_of(schedule: str, shape: PipelineShape, cuts: list[int], degree: int, levels: list[tuple[str, int]]) -> Plan:
    """Layers cuts[s] .. cuts[s + 1] - 1 in stage s, on `degree` devices of its rank."""
    return Plan(
        stages=tuple(
            Stage(
                layers=tuple(f"L{i}" for i in range(cuts[s], cuts[s + 1])),
                replicas=tuple((f"d{rank * degree + k}",) for k in range(degree)),
                recomputation=Recomputation(levels[s][0]),
                zero=levels[s][1],
            )
            for s, rank in enumerate(shape.ranks)
        ),
        schedule=schedule,
        microbatch_size=degree,
        num_microbatches=shape.num_microbatches,
    )


@st.composite
def plans(draw: st.DrawFn, schedule: str) -> tuple[Problem, Plan]:
    """Chains of up to 10 layers, some of them alike, some frozen, on memory that is sometimes too little."""
    shape = draw(legal_shapes(schedule, training=True, most_ranks=3))
    assume(shape.num_stages > shape.pipeline_size)
    degree = draw(st.sampled_from([1, 1, 2]))
    n = shape.num_stages + draw(st.integers(0, 3))
    kinds = draw(st.lists(st.tuples(quarters, quarters, words, words, words), min_size=1, max_size=3))
    layers = [draw(st.sampled_from(kinds)) for _ in range(n)]
    problem = chain_problem(
        [(f, b) for f, b, *_ in layers],
        devices=shape.pipeline_size * degree + draw(st.integers(0, 1)),
        num_microbatches=shape.num_microbatches,
        microbatch_size=degree,
        parameter_bytes=[KILO * p for _, _, p, _, _ in layers],
        activation_bytes=[KILO * a for _, _, _, a, _ in layers],
        output_bytes=[KILO * o for *_, o in layers],
        bandwidth=draw(st.sampled_from([16.0 * KILO, 2.0**50])),
        memory_bytes=draw(st.sampled_from([200, 400, 2**30])) * KILO,
    )
    frozen = draw(st.sampled_from([0, 0, 0, 1]))
    trained = tuple(replace(x, trainable=i >= frozen) for i, x in enumerate(problem.graph.layers))
    inner = draw(st.permutations(range(1, n)))[: shape.num_stages - 1]
    levels = st.tuples(st.sampled_from(["none", "full"]), st.sampled_from([0, 1, 3]))
    chosen = draw(st.lists(levels, min_size=shape.num_stages, max_size=shape.num_stages))
    made = plan_of(schedule, shape, [0, *sorted(inner), n], degree, chosen)
    return replace(problem, graph=replace(problem.graph, layers=trained)), made


@pytest.mark.parametrize("schedule", VIRTUAL)
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_no_plan_is_faster(schedule: str, data: st.DataObject) -> None:
    problem, made = data.draw(plans(schedule))
    assume(not verify(made, problem))
    seconds = simulate_plan(problem, made)[0].makespan_s
    assume(seconds > 0)
    found = bound_s(problem, schedule, 2 * seconds, SearchOptions(searched=SEARCHED))
    event(f"{10 * found / seconds // 1 / 10}")
    assert found <= seconds * (1 + RELATIVE)


@pytest.mark.parametrize("schedule", VIRTUAL)
@settings(max_examples=60)
@given(data=st.data())
def test_more_microbatches_hold_no_less(schedule: str, data: st.DataObject) -> None:
    """What a rank holds at some moment of the orders that are walked, it holds at some moment of longer ones too."""
    shape = data.draw(legal_shapes(schedule, training=True, most_ranks=4))
    longer = replace(
        shape, num_microbatches=few_microbatches(shape) + shape.pipeline_size * data.draw(st.integers(0, 4))
    )
    change = {"F": 1, "B": -1, "I": 0, "W": -1}
    for (stages, moments), worker in zip(
        moments_of(SCHEDULES[schedule], shape), SCHEDULES[schedule].workers(longer), strict=True
    ):
        live, seen = dict.fromkeys(stages, 0), list[dict[int, int]]()
        for action in worker.order:
            live[action.stage] += change[action.kind]
            seen.append(dict(live))
        for moment in moments:
            assert any(all(now[stage] >= held for stage, held in moment.items()) for now in seen)


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (3, 6), (4, 8)])
def test_uniform_interleaved_pipelines_are_met(ranks: int, count: int) -> None:
    """One layer of 3 s per stage, two stages per rank: (M + (P - 1) / 2) T / P (Narayanan et al. 2021)."""
    problem = chain_problem([(1.0, 2.0)] * 2 * ranks, devices=ranks, num_microbatches=count)
    right = (count + (ranks - 1) / 2) * 6.0
    assert bound_s(problem, "interleaved_1f1b", 2 * right) == pytest.approx(right, rel=1e-6)


def test_memory_that_is_too_little_forces_recomputation() -> None:
    """Two ranks of two stages, two microbatches: rank 1 holds both of stage 1 and one of stage 3, 30 KB, where 15
    have room. A layer that is computed again saves 8 KB a microbatch: 15 / 16 of stage 1 at least, 2 x 15 / 16 s."""
    problem = chain_problem(
        [(1.0, 2.0)] * 4,
        devices=2,
        num_microbatches=2,
        activation_bytes=[10_000] * 4,
        output_bytes=[2_000] * 4,
        memory_bytes=15_000,
    )
    options = SearchOptions(searched=(Decision.RECOMPUTATION,))
    roomy = bound_s(
        replace(problem, cluster=chain_problem([(1.0, 2.0)] * 4, devices=2, num_microbatches=2).cluster),
        "interleaved_1f1b",
        100.0,
        options,
    )
    assert roomy == pytest.approx(2 * 6 + 3)
    tight = bound_s(problem, "interleaved_1f1b", 100.0, options)
    assert roomy + 0.99 * 2 * 15 / 16 < tight <= 2 * 8 + 4


def test_a_model_that_fits_nowhere_takes_longer_than_any_plan() -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=2, num_microbatches=2, parameter_bytes=[100] * 4, memory_bytes=30)
    assert bound_s(problem, "interleaved_1f1b", 77.0) == pytest.approx(77.0)


def test_one_schedule_with_one_stage_per_group_and_it_says_nothing() -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=2, num_microbatches=2)
    mixed = replace(query(problem, "interleaved_1f1b", 77.0), schedules=("1f1b", "interleaved_1f1b"))
    assert BOUNDS["virtual"].iteration_s(mixed) is None
    assert BOUNDS["virtual"].iteration_s(query(problem, "interleaved_1f1b", math.inf)) is None


def test_an_answer_says_what_is_known_of_both_kinds_of_plans() -> None:
    """Four equal layers on two devices, four microbatches: 1F1B takes (4 + 1) x 6 s, interleaved (4 + 1/2) x 6 s."""
    problem = chain_problem([(1.0, 2.0)] * 4, devices=2, num_microbatches=4)
    result = plan(problem, SearchOptions(schedule="interleaved_1f1b", num_stages=4))
    (certificate,) = (c for c in result.report.certificates if c.quantity == "iteration_time_s")
    assert (certificate.method, certificate.gap) == ("virtual", pytest.approx(0.0, abs=1e-6))
