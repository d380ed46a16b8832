"""Our own executor in real processes: every schedule and every plan equals the unpartitioned model."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from runnable_models import Loader
from running_plans import BRANCHES, GPT2, SKIP, TIMEOUT_S, assert_gone, checked, cut, passes, placed, started

from planner.errors import RunError
from planner.plan import Plan
from planner.runtime import ExecutorKind, run
from planner.runtime.abilities import check_runnable, shape_of
from planner.schedules import SCHEDULES, Placement
from planner.workload import Recomputation, ReplicaMode

ONE_STAGE_EACH, TWO_STAGES_EACH = (2,), (1, 2, 3)
__all__ = ["started"]
CUSTOM = (
    ("0F0", "0F1", "0F2", "0I0", "0F3", "0B1", "0W0", "0I2", "0B3", "0W2"),
    ("1F0", "1F1", "1B0", "1I1", "1F2", "1B2", "1W1", "1F3", "1I3", "1W3"),
)


def plan_of(schedule: str) -> Plan:
    """Two ranks with one stage each, or two where the schedule wants virtual stages."""
    if schedule == "custom":
        return placed(SKIP, ONE_STAGE_EACH, schedule, actions=CUSTOM)
    line = SCHEDULES[schedule].placement is Placement.LINE
    return placed(SKIP, ONE_STAGE_EACH if line else TWO_STAGES_EACH, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES.names())
def test_every_schedule_equals_the_whole_model_in_its_own_order(schedule: str) -> None:
    plan = plan_of(schedule)
    report = checked(plan, "skip_model")
    shape = shape_of(check_runnable(plan), plan)
    for rank, worker in enumerate(SCHEDULES[schedule].workers(shape)):
        assert passes(report, rank) == [str(action) for action in worker.actions]
    assert len(report.stages) == len(plan.stages)
    assert all(stage.forward_s > 0 and stage.backward_s > 0 for stage in report.stages)


@pytest.mark.parametrize("mode", list(ReplicaMode))
@pytest.mark.parametrize("degrees", [(2, 1), (1, 2)])
def test_unequal_replication_equals_the_whole_model(degrees: tuple[int, int], mode: ReplicaMode) -> None:
    report = checked(cut(SKIP, (2,), degrees, num_microbatches=3, replica_mode=mode), "skip_model")
    dealt = mode is ReplicaMode.DEALT
    wide = 0 if degrees[0] == 2 else 1
    assert {label[2:] for label in passes(report, wide)} == ({"0", "2"} if dealt else {"0", "1", "2"})


@pytest.mark.parametrize("mode", list(ReplicaMode))
def test_tied_weights_of_stages_with_unequal_replication(mode: ReplicaMode) -> None:
    checked(cut(GPT2, (3,), (2, 1), num_microbatches=3, replica_mode=mode), "gpt2_model")


def test_neither_degree_divides_the_other() -> None:
    checked(cut(SKIP, (2,), (2, 3), microbatch_size=6, num_microbatches=2), "skip_model")


def test_a_graph_with_two_branches_equals_the_whole_model() -> None:
    """The second branch's stage does not read what the stage before it makes."""
    checked(placed(BRANCHES, (1, 3, 4), "interleaved_1f1b"), "branches_model")


def test_all_stages_on_one_device() -> None:
    rows = (tuple(f"{stage}{kind}{m}" for m in range(4) for stage, kind in ((0, "F"), (1, "F"), (1, "B"), (0, "B"))),)
    checked(cut(SKIP, (2,), ranks=(0, 0), schedule="custom", actions=rows), "skip_model")


def test_replicas_of_the_whole_model_are_dealt_microbatches() -> None:
    checked(cut(SKIP, (), (2,), num_microbatches=3, replica_mode=ReplicaMode.DEALT), "skip_model")


def test_fewer_microbatches_than_stages() -> None:
    report = checked(cut(SKIP, (2,), num_microbatches=1), "skip_model", executor=ExecutorKind.AUTO)
    assert passes(report, 0) == ["0F0", "0B0"]


@pytest.mark.parametrize("schedule", ["zb_v", "interleaved_1f1b"])
def test_tied_weights_on_one_rank_and_on_two(schedule: str) -> None:
    checked(placed(GPT2, (2, 3, 4), schedule), "gpt2_model")


def test_weights_beside_the_path_of_the_inputs_get_their_gradient() -> None:
    """PyTorch's split backward pass does not find them."""
    layers = ("first.linear", "second.linear", "second.aside", "third.linear", "loss")
    checked(cut(layers, (1, 3), schedule="zb_h1"), "beside_model")


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_recomputation_equals_the_whole_model(schedule: str) -> None:
    plan = cut(SKIP, (2,), schedule=schedule)
    stages = tuple(replace(stage, recomputation=Recomputation.FULL) for stage in plan.stages)
    checked(replace(plan, stages=stages), "skip_model")


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_nothing_goes_back_to_stages_without_trained_parameters(schedule: str) -> None:
    checked(cut(SKIP, (1,), schedule=schedule), "frozen_model")


def test_strided_tensors_and_gradients_are_sent() -> None:
    checked(cut(("0", "1", "2"), (1, 2), schedule="zb_h1"), "strided_model")


def test_integers_are_sent() -> None:
    report = run(
        cut(("first", "second", "loss"), (1,)),
        Loader("codes_model"),
        num_steps=1,
        executor=ExecutorKind.OWN,
        timeout_s=TIMEOUT_S,
    )
    assert report.losses[0] > 0


def test_a_killed_rank_is_named_and_nothing_stays(started: list[int]) -> None:
    plan = cut(SKIP, (2,), (2, 1), replica_mode=ReplicaMode.DEALT)
    with pytest.raises(
        RunError, match=r"rank 2 \(stage 1, replica 0, device cpu1\.0\) failed: was killed by .*SIGKILL"
    ):
        run(plan, Loader("killed_model"), num_steps=2, timeout_s=TIMEOUT_S)
    assert_gone(started, 3)


def test_early_backward_needs_less_memory_than_gpipe() -> None:
    """What was sent is let go when its gradient is back."""
    peaks = []
    for schedule in ("1f1b", "gpipe"):
        plan = cut(SKIP, (3,), schedule=schedule, microbatch_size=64, num_microbatches=8)
        report = run(plan, Loader("skip_model"), num_steps=1, executor=ExecutorKind.OWN, timeout_s=TIMEOUT_S)
        peaks.append(report.stages[0].peak_memory_bytes)
    assert peaks[0] < 0.75 * peaks[1]
