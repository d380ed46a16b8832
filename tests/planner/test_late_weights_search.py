"""Schedules under which a stage holds more the more stages there are before it: searches by name end with a plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from strategies import chain_problem, context_of

from planner import Plan, Problem, Replication, SearchOptions, Stage
from planner.costs.model import CostModel
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.service import plan
from planner.verify import verify

NAMES = ("zb_h1", "zb_h2")


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
