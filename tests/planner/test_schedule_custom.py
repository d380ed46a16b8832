"""`custom`: what a plan writes out is what runs, and every way to get it wrong is named."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_shapes import legal_shapes, shape_of_ranks

from planner.codec import dumps, loads
from planner.errors import InputError
from planner.plan import Plan, Stage
from planner.schedules import SCHEDULES, PipelineShape

NAMED = sorted(set(SCHEDULES.names()) - {"custom"})


def written_out(name: str, shape: PipelineShape) -> PipelineShape:
    """The shape with another schedule's actions as `custom` ones."""
    rows = tuple(tuple(map(str, worker.actions)) for worker in SCHEDULES[name].workers(shape))
    return replace(shape, actions=rows, options={})


@pytest.mark.parametrize("name", NAMED)
@given(data=st.data())
def test_every_schedule_can_be_written_out(name: str, data: st.DataObject) -> None:
    shape = data.draw(legal_shapes(name))
    custom = written_out(name, shape)
    SCHEDULES["custom"].check(custom)
    own = SCHEDULES["custom"].workers(custom)
    assert [w.actions for w in own] == [w.actions for w in SCHEDULES[name].workers(shape)]
    assert [w.stages for w in own] == [w.stages for w in SCHEDULES[name].workers(shape)]
    for stage in range(shape.num_stages):
        assert SCHEDULES["custom"].in_flight(custom, stage) == SCHEDULES[name].in_flight(shape, stage)


def test_weight_gradients_may_run_in_any_order() -> None:
    rows = (("0F0", "0F1", "0I0", "0I1", "0W1", "0W0"),)
    shape = PipelineShape(num_stages=1, num_microbatches=2, dealt=(1,), actions=rows)
    SCHEDULES["custom"].check(shape)
    assert tuple(map(str, SCHEDULES["custom"].workers(shape)[0].actions)) == rows[0]


GOOD = (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1I1", "1W1"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((GOOD[0],), "has 1 lists of actions for pipeline size 2: give one list per rank"),
        (((*GOOD[0], "zero"), GOOD[1]), "rank 0: 'zero' is no action: write stage, one of F, B, I, W, and microbatch"),
        (((*GOOD[0], "7F0"), GOOD[1]), "rank 0: '7F0' names an unknown stage: the plan has stages 0 to 1"),
        (((*GOOD[0], "0F2"), GOOD[1]), "rank 0: '0F2' names an unknown microbatch: there are 0 to 1"),
        (((*GOOD[0], "1F0"), GOOD[1][1:]), "rank 0: '1F0' belongs to rank 1"),
        ((GOOD[0][:-1], GOOD[1]), "both I and W of stage 0 for microbatch 1, once each; on rank 0 it has 0F1: add"),
        ((GOOD[0], GOOD[1][:-1]), "of stage 1 for microbatch 1, once each; on rank 1 it has 1F1, 1I1: add"),
        (((*GOOD[0], "0B1"), GOOD[1]), "on rank 0 it has 0F1, 0B1, 0B1: add what is missing, remove what is double"),
        (((), GOOD[1]), "of stage 0 for microbatch 0, once each; on rank 0 it has none"),
        (
            (("0F0", "0B0", "0F1", "0B1"), ("1F0", "1F1", "1B0", "1B1")),
            "rank 0: '0B0' can never run: it waits for 1B0 or 1I0, which does not come before it; rank 1 is at 1F1",
        ),
        ((GOOD[0], ("1F0", "1B0", "1F1", "1W1", "1I1")), "rank 1: '1W1' can never run: it waits for 1I1"),
        ((GOOD[0], ("1B0", "1F0", "1F1", "1B1")), "rank 1: '1B0' can never run: it waits for 1F0, "),
    ],
)
def test_what_is_wrong_is_named(rows: tuple[tuple[str, ...], ...], message: str) -> None:
    shape = PipelineShape(num_stages=2, num_microbatches=2, dealt=(1, 1), actions=rows)
    with pytest.raises(InputError, match=re.escape(message)):
        SCHEDULES["custom"].check(shape)


def test_inference_runs_forwards_only() -> None:
    shape = replace(shape_of_ranks("custom", 2, 2), forward_only=True)
    with pytest.raises(InputError, match="is a backward action, but inference runs forwards only"):
        SCHEDULES["custom"].check(shape)


def test_actions_stand_in_the_plan() -> None:
    plan = Plan(
        stages=tuple(Stage(layers=(f"L{s}",), replicas=((f"d{s}",),)) for s in range(2)),
        schedule="custom",
        microbatch_size=1,
        num_microbatches=2,
        actions=GOOD,
    )
    assert loads(Plan, dumps(plan)) == plan
    with pytest.raises(InputError, match="/actions/0/1"):
        loads(Plan, dumps(plan).replace('"0F1"', "3"))
