"""Schedules: every action once, in an order that can run; in-flight counts; the tables of the docstrings."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.schedules import SCHEDULES, PipelineShape, Worker
from planner.simulation.engine import Run, Task, simulate
from planner.timeline import Action, ActionKind


@st.composite
def shapes(draw: st.DrawFn) -> PipelineShape:
    """Pipelines of 1 to 5 stages; replicas are dealt to at most as many as there are microbatches."""
    microbatches = draw(st.integers(1, 8))
    dealt = draw(st.lists(st.integers(1, min(3, microbatches)), min_size=1, max_size=5))
    return PipelineShape(
        num_stages=len(dealt),
        num_microbatches=microbatches,
        dealt=tuple(dealt),
        forward_only=draw(st.booleans()),
    )


def run_of_unit_actions(shape: PipelineShape, workers: tuple[Worker, ...]) -> tuple[dict[Action, float], Run]:
    """Start times when every action takes one second and transfers none."""
    tasks: list[Task] = []
    number: dict[Action, int] = {}
    for n, worker in enumerate(workers):
        for action in worker.actions:
            number[action] = len(tasks)
            tasks.append(Task(label=str(action), category="compute", seconds=1.0, resources=(n,), queue=n))
    for action, task in number.items():
        step = -1 if action.kind is ActionKind.FORWARD else 1
        before = Action(action.stage + step, action.kind, action.microbatch)
        if before in number:
            tasks[task].needs.append(number[before])
        if action.kind is ActionKind.BACKWARD:
            tasks[task].needs.append(number[Action(action.stage, ActionKind.FORWARD, action.microbatch)])
    run = simulate(tasks, len(workers))
    return {action: run.start_s[task] for action, task in number.items()}, run


@pytest.mark.parametrize("name", SCHEDULES.names())
@given(shape=shapes())
def test_every_action_runs_exactly_once_and_nothing_waits_for_itself(name: str, shape: PipelineShape) -> None:
    schedule = SCHEDULES[name]
    schedule.check(shape, {})
    workers = schedule.workers(shape)
    kinds = [ActionKind.FORWARD] if shape.forward_only else [ActionKind.FORWARD, ActionKind.BACKWARD]
    expected = Counter(
        Action(s, kind, m) for s in range(shape.num_stages) for kind in kinds for m in range(shape.num_microbatches)
    )
    assert Counter(action for worker in workers for action in worker.actions) == expected
    for worker in workers:
        for action in worker.actions:
            assert action.microbatch % shape.dealt[action.stage] == worker.replica
    run_of_unit_actions(shape, workers)  # raises when it is stuck


@pytest.mark.parametrize("name", SCHEDULES.names())
@given(shape=shapes())
def test_in_flight_is_what_the_order_holds_at_most(name: str, shape: PipelineShape) -> None:
    schedule = SCHEDULES[name]
    most: dict[int, int] = dict.fromkeys(range(shape.num_stages), 0)
    for worker in schedule.workers(shape):
        held = 0
        for action in worker.actions:
            held += 1 if action.kind is ActionKind.FORWARD else -1
            most[action.stage] = max(most[action.stage], held)
    for stage in range(shape.num_stages):
        expected = 1 if shape.forward_only else most[stage]
        assert schedule.in_flight(shape, stage) == expected


@given(stages=st.integers(1, 8), microbatches=st.integers(1, 12))
def test_in_flight_counts_of_the_literature(stages: int, microbatches: int) -> None:
    shape = PipelineShape(num_stages=stages, num_microbatches=microbatches, dealt=(1,) * stages)
    for s in range(stages):
        assert SCHEDULES["gpipe"].in_flight(shape, s) == microbatches
        assert SCHEDULES["1f1b"].in_flight(shape, s) == min(microbatches, stages - s)


def test_in_flight_with_dealt_replicas() -> None:
    """PipeDream's NOAM: ceil(workers / workers of the input stage), here 3 + 1 workers."""
    shape = PipelineShape(num_stages=2, num_microbatches=12, dealt=(3, 1))
    assert [SCHEDULES["1f1b"].in_flight(shape, s) for s in (0, 1)] == [2, 1]
    assert [SCHEDULES["gpipe"].in_flight(shape, s) for s in (0, 1)] == [4, 12]


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_the_table_of_the_docstring_is_what_runs(name: str) -> None:
    module = inspect.getmodule(type(SCHEDULES[name]))
    assert module is not None
    assert module.__doc__ is not None
    rows = [line.split("|")[1] for line in module.__doc__.splitlines() if line.strip().startswith("stage ")]
    assert len(rows) == 2
    shape = PipelineShape(num_stages=2, num_microbatches=3, dealt=(1, 1))
    start, _ = run_of_unit_actions(shape, SCHEDULES[name].workers(shape))
    for stage, row in enumerate(rows):
        drawn = {row[at : at + 3]: (at - 1) // 4 for at in range(1, len(row), 4) if row[at : at + 3].strip()}
        assert drawn == {str(a): round(begun) for a, begun in start.items() if a.stage == stage}


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_bad_shapes_and_options_are_refused(name: str) -> None:
    shape = PipelineShape(num_stages=2, num_microbatches=2, dealt=(3, 1))
    with pytest.raises(InputError, match="stage 0 of 2 deals 2 microbatches to 3 replicas"):
        SCHEDULES[name].check(shape, {})
    fine = PipelineShape(num_stages=2, num_microbatches=2, dealt=(1, 1))
    with pytest.raises(InputError, match="takes no options, got depth"):
        SCHEDULES[name].check(fine, {"depth": 2})


def test_actions_print_as_in_schedule_tables() -> None:
    assert str(Action(2, ActionKind.FORWARD, 0)) == "2F0"
