"""What a run refuses before it starts anything."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from planner.errors import ExportError, InputError, PlannerError
from planner.plan import Plan, Stage
from planner.runtime import ExecutorKind, check_runnable, run
from planner.workload import ReplicaMode

PLAN = Plan(
    stages=(
        Stage(layers=("a",), replicas=(("d0",), ("d1",))),
        Stage(layers=("b",), replicas=(("d2",), ("d3",))),
    ),
    schedule="1f1b",
    microbatch_size=4,
    num_microbatches=2,
)


def loader(batch_size: int) -> Any:
    raise AssertionError("nothing may start")


def changed(number: int, **fields: Any) -> Plan:
    """PLAN with some fields of one stage changed."""
    stages = list(PLAN.stages)
    stages[number] = dataclasses.replace(stages[number], **fields)
    return dataclasses.replace(PLAN, stages=tuple(stages))


REFUSED = [
    (dataclasses.replace(PLAN, microbatch_size=3), "microbatches of 3 samples among 2 replicas", "/microbatch_size"),
    (
        changed(1, replicas=(("d2",), ("d0",))),
        "stage 1 runs on device 'd0', which runs stage 0 too",
        "/stages/1/replicas",
    ),
    (changed(1, tensor=2), "stage 1 has tensor degree 2", "/stages/1/tensor"),
    (changed(0, context=2), "stage 0 has context degree 2", "/stages/0/context"),
    (
        dataclasses.replace(changed(1, zero=2), replica_mode=ReplicaMode.DEALT),
        "stage 1 divides gradients by ZeRO stage 2 .* in turn.* plan with ZeRO stage 0 or 1, or replica mode split",
        "/stages/1/zero",
    ),
    (
        changed(1, replicas=(("d2", "d4"), ("d3", "d5"))),
        "stage 1 has a replica of several devices",
        "/stages/1/replicas",
    ),
    (dataclasses.replace(PLAN, schedule="chimera"), "no schedule 'chimera': plan with 1f1b, custom", "/schedule"),
]
REFUSED_BY_TORCH = [
    (changed(1, zero=1), "stage 1 shards by ZeRO stage 1, .* run it with the executor own", "/stages/1/zero"),
    (changed(1, replicas=(("d2",),)), "stage 1 has 1 replicas, stage 0 has 2", "/stages/1/replicas"),
    (dataclasses.replace(PLAN, replica_mode=ReplicaMode.DEALT), "stage 0 deals whole microbatches", "/replica_mode"),
    (dataclasses.replace(PLAN, num_microbatches=1), "1 microbatches for 2 stages", "/num_microbatches"),
    (dataclasses.replace(PLAN, schedule="zb_h1"), "no schedule 'zb_h1': plan with 1f1b or gpipe", "/schedule"),
]


@pytest.mark.parametrize(("plan", "message", "pointer"), REFUSED)
def test_what_cannot_be_run_is_named(plan: Plan, message: str, pointer: str) -> None:
    with pytest.raises(ExportError, match=message.replace("(", r"\(")) as caught:
        run(plan, loader)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(("plan", "message", "pointer"), REFUSED_BY_TORCH)
def test_what_torch_cannot_run_is_left_to_our_own_executor(plan: Plan, message: str, pointer: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        run(plan, loader, executor=ExecutorKind.TORCH)
    assert caught.value.pointer == pointer
    assert check_runnable(plan).num_stages == 2


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({"num_steps": 0}, "/num_steps"),
        ({"learning_rate": float("nan")}, "/learning_rate"),
        ({"learning_rate": 0.0}, "/learning_rate"),
        ({"timeout_s": float("inf")}, "/timeout_s"),
        ({"timeout_s": -1.0}, "/timeout_s"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InputError) as caught:
        run(PLAN, loader, **arguments)
    assert caught.value.pointer == pointer


def test_a_loader_that_cannot_travel_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match="top of a module"):
        run(PLAN, lambda batch_size: loader(batch_size))


def test_the_layout_of_a_runnable_plan() -> None:
    grid = check_runnable(PLAN)
    assert (grid.num_stages, grid.num_ranks) == (2, 4)
    assert [grid.rank(stage, replica) for stage in (0, 1) for replica in (0, 1)] == [0, 1, 2, 3]


def test_every_refusal_is_the_callers_fault() -> None:
    assert all(issubclass(kind, PlannerError) and kind.exit_status == 2 for kind in (ExportError, InputError))


def test_importing_the_runtime_does_not_import_torch() -> None:
    code = "import planner.runtime, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
