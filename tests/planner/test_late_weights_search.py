"""Schedules under which a stage holds more the more stages there are before it: searches by name end with a plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_shapes import ONE_PER_RANK
from strategies import assert_same_objective, chain_problem, context_of, quarters, with_weight_pass, words

from planner import Plan, Problem, Replication, SearchOptions, Stage
from planner.costs.model import CostModel
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers.base import OPTIMIZERS
from planner.schedules import SCHEDULES, Order, PipelineShape
from planner.service import plan
from planner.verify import verify
from planner.workload import Recomputation

NAMES = tuple(name for name in ONE_PER_RANK if SCHEDULES[name].splits_backward)


def heavy_third(memory_bytes: int) -> Problem:
    """Four equal layers that keep 10, 10, 30 and 10 bytes of each of eight microbatches."""
    return chain_problem(
        [(1.0, 2.0)] * 4, devices=4, num_microbatches=8, activation_bytes=[10, 10, 30, 10], memory_bytes=memory_bytes
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_search_ends_with_a_plan_where_few_stages_fit(name: str) -> None:
    """In 60 bytes one stage fits. Four stages would if each held what it holds with no stage before it (40, 30, 60, 10)
    but each holds four microbatches or more.
    """
    problem = heavy_third(60)
    result = plan(problem, SearchOptions(schedule=name, replication=Replication.NONE, time_limit_s=20.0))
    assert result.plan is not None
    assert len(result.plan.stages) == 1
    assert verify(result.plan, problem) == ()


@pytest.mark.parametrize("name", [*NAMES, "1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_in_flight_is_the_schedules_where_the_number_of_stages_is_given(name: str, stages: int) -> None:
    problem = heavy_third(2**30)
    context = context_of(problem, SearchOptions(schedule=name, num_stages=stages, replication=Replication.NONE))
    space = ChainSpace(context, name, (1, 8), (1,), classes=device_classes(problem, 1))
    bounds = [4 * s // stages for s in range(stages + 1)]
    made = Plan(
        stages=tuple(
            Stage(layers=tuple(f"L{i}" for i in range(a, b)), replicas=((f"d{s}",),))
            for s, (a, b) in enumerate(pairwise(bounds))
        ),
        schedule=name,
        microbatch_size=1,
        num_microbatches=8,
    )
    priced = CostModel(problem).price(made)
    assert [stage.in_flight for stage in priced.stages] == [space.held(stages - s) for s in range(stages)]


@pytest.mark.parametrize("name", NAMES)
def test_a_free_number_of_stages_holds_no_more_than_any_given_one(name: str) -> None:
    """The relaxation loses no plan."""
    problem = heavy_third(2**30)
    options = SearchOptions(schedule=name, replication=Replication.NONE)
    free, *given = (
        ChainSpace(
            context_of(problem, replace(options, num_stages=stages)),
            name,
            (1, 8),
            (1,),
            classes=device_classes(problem, 1),
        )
        for stages in (None, 1, 2, 3, 4)
    )
    for stages, space in enumerate(given, 1):
        assert all(free.held(left) <= space.held(left) for left in range(1, stages + 1))


def held_and_late(order: Order) -> set[tuple[int, int]]:
    """After every pass of a stage: microbatches in flight, and those of them between I and W."""
    held = late = 0
    found = set()
    for action in (str(p.kind) for p in order):
        held, late = held + (action == "F") - (action == "W"), late + (action == "I") - (action == "W")
        found.add((held, late))
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 7, 16, 30])
def test_most_are_in_flight_when_most_are_late(name: str, stages: int, microbatches: int) -> None:
    """Both numbers of the search are met at once, so that its memory is that of the order; fewer stages before that are
    known are never too many.
    """
    problem = chain_problem([(1.0, 2.0)] * stages, devices=stages, num_microbatches=microbatches)
    shape = PipelineShape(num_stages=stages, num_microbatches=microbatches, dealt=(1,) * stages)
    options = SearchOptions(schedule=name, replication=Replication.NONE)
    given, free = (
        ChainSpace(
            context_of(problem, replace(options, num_stages=number)),
            name,
            (1, microbatches),
            (1,),
            classes=device_classes(problem, 1),
        )
        for number in (stages, None)
    )
    for stage, worker in enumerate(SCHEDULES[name].workers(shape)):
        found, left = held_and_late(worker.order), stages - stage
        most = tuple(max(counts) for counts in zip(*found, strict=True))
        assert (given.held(left), given.late(left)) == most
        assert most in found
        assert free.held(left) <= most[0]
        assert 1 <= free.late(left) <= most[1]


@st.composite
def tight_problems(draw: st.DrawFn) -> Problem:
    """Chains whose activations and gradients for W nearly fill the devices, recomputed or not."""
    n, devices = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    problem = chain_problem(
        [(draw(quarters), draw(quarters)) for _ in range(n)],
        devices=devices,
        num_microbatches=draw(st.integers(1, 6)),
        output_bytes=draw(st.lists(words, min_size=n, max_size=n)),
        activation_bytes=draw(st.lists(words, min_size=n, max_size=n)),
        memory_bytes=draw(st.integers(20, 400)),
        workload={"recomputation": draw(st.sampled_from([Recomputation.NONE, Recomputation.FULL]))},
    )
    return with_weight_pass(problem, draw(st.lists(words, min_size=n, max_size=n)))


@settings(max_examples=300)
@given(problem=tight_problems(), name=st.sampled_from(NAMES), stages=st.integers(1, 4))
def test_chain_dp_is_the_best_of_all_plans(problem: Problem, name: str, stages: int) -> None:
    """With the number of stages given, all that a stage holds is known when it is placed."""
    options = SearchOptions(schedule=name, num_stages=stages, replication=Replication.NONE)
    context = context_of(problem, options)
    dp, oracle = (OPTIMIZERS[optimizer].search(context) for optimizer in ("chain_dp", "exhaustive"))
    assert_same_objective(dp, oracle)
    for candidate in dp.candidates:
        assert verify(candidate.plan, problem, context.costs) == ()
