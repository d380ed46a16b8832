"""The workload that the options of `pipeplan plan` make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import GPT2, Call, call, plan_file

from api.commands.fixing import fixed
from api.commands.workload import GivenWorkload, Precision, searched_of, workload_of
from planner import Communication, Inference, Recomputation, Training
from planner.errors import InputError
from planner.options import Decision, SearchOptions

__all__ = ["call"]
CARRIED = Training(global_batch_size=8, microbatch_size=2, optimizer_bytes_per_parameter=0.0)


def test_without_other_word_bytes_per_parameter_follow_the_dtype() -> None:
    given = GivenWorkload(global_batch_size=4)
    assert workload_of(given, None, "float32") == Training(global_batch_size=4)
    assert workload_of(given, None, "bfloat16") == Training(
        global_batch_size=4,
        weight_bytes_per_parameter=2,
        gradient_bytes_per_parameter=4,
        optimizer_bytes_per_parameter=12,
    )


def test_explicit_bytes_win_over_the_precision() -> None:
    given = GivenWorkload(global_batch_size=4, precision=Precision.BF16, gradient_bytes_per_parameter=2)
    made = workload_of(given, None, "float32")
    assert isinstance(made, Training)
    assert made.gradient_bytes_per_parameter == 2
    assert (made.weight_bytes_per_parameter, made.optimizer_bytes_per_parameter) == (2, 12)


def test_a_carried_workload_stays_where_nothing_is_said() -> None:
    assert workload_of(GivenWorkload(), CARRIED, "float32") == CARRIED
    assert workload_of(GivenWorkload(microbatch_size=4), CARRIED, "bfloat16").microbatch_size == 4
    inference = Inference(global_batch_size=1)
    assert workload_of(GivenWorkload(global_batch_size=2), inference, "float32") == Inference(global_batch_size=2)


def test_inference_of_a_carried_training_keeps_the_batch() -> None:
    assert workload_of(GivenWorkload(inference=True), CARRIED, "float32") == Inference(global_batch_size=8)


@pytest.mark.parametrize(
    "option",
    [
        {"zero": 1},
        {"recomputation": Recomputation.FULL},
        {"optimizer_bytes_per_parameter": 1.0},
        {"sequence_parallel": False},
        {"offload_optimizer": True},
        {"reshard": False},
    ],
)
def test_training_options_of_an_inference_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="about training"):
        workload_of(GivenWorkload(global_batch_size=1, inference=True, **option), None, "float32")


def test_without_a_batch_there_is_no_workload() -> None:
    with pytest.raises(InputError, match="--global-batch"):
        workload_of(GivenWorkload(), None, "float32")


def test_every_option_reaches_the_problem(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ["--microbatch", "2", "--num-microbatches", "8", "--tensor", "2", "--zero", "1", "--recompute", "full"]
    words += ["--communication", "blocking", "--precision", "fp32", "--weight-bytes", "3", "--sequence-length", "1024"]
    assert call(*GPT2, *words, "-o", path).status == 0
    problem = plan_file(path).problem
    assert problem.workload == Training(
        global_batch_size=16,
        microbatch_size=2,
        num_microbatches=8,
        sequence_length=1024,
        weight_bytes_per_parameter=3,
        recomputation=Recomputation.FULL,
        communication=Communication.BLOCKING,
        tensor=2,
        zero=1,
    )
    assert problem.profiles[0].dtype == "float32"


def test_groups_inside_a_stage_and_what_is_kept_where_reach_the_plan(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ["--context", "2", "--expert", "1", "--no-sequence-parallel", "--offload-optimizer"]
    words += ["--zero", "3", "--reshard", "off"]
    assert call(*GPT2, *words, "--recompute", "none", "--tensor", "1", "-o", path).status == 0
    found = plan_file(path)
    work = found.problem.workload
    assert isinstance(work, Training)
    assert (work.context, work.expert, work.sequence_parallel, work.offload_optimizer) == (2, 1, False, True)
    assert found.result.plan is not None
    assert {(stage.context, stage.zero, stage.reshard) for stage in found.result.plan.stages} == {(2, 3, False)}
    assert call(*GPT2, "--reshard", "maybe").status == 2


def test_context_and_expert_degrees_are_searched_by_word_only() -> None:
    usual = (Decision.TENSOR, Decision.ZERO, Decision.RECOMPUTATION)
    assert searched_of(GivenWorkload(), by_default=True) == usual
    assert searched_of(GivenWorkload(inference=True), by_default=True) == (Decision.TENSOR,)
    by_word = GivenWorkload(tensor=2, auto=(Decision.CONTEXT, Decision.EXPERT, Decision.ZERO))
    assert searched_of(by_word, by_default=False) == (Decision.ZERO, Decision.CONTEXT, Decision.EXPERT)
    inference = GivenWorkload(inference=True, auto=(Decision.CONTEXT, Decision.ZERO))
    assert searched_of(inference, by_default=False) == (Decision.CONTEXT,)


def test_fixed_degrees_win_over_auto() -> None:
    given = GivenWorkload(auto=(Decision.CONTEXT, Decision.EXPERT))
    pinned, _ = fixed("context=2,expert=4,reshard=off", given, SearchOptions())
    assert (pinned.context, pinned.expert, pinned.reshard, pinned.auto) == (2, 4, False, ())
    with pytest.raises(InputError, match="--fix reshard='no' is no value of reshard: use on or off"):
        fixed("reshard=no", given, SearchOptions())


def test_the_search_options_reach_the_plan(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ["--schedule", "gpipe", "--num-stages", "2", "--replication", "none", "--optimizer", "chain_dp"]
    assert call(*GPT2, *words, "--cost-model", "closed", "--seed", "7", "-o", path).status == 0
    result = plan_file(path).result
    assert result.plan is not None
    assert result.plan.schedule == "gpipe"
    assert [len(stage.replicas) for stage in result.plan.stages] == [1, 1]
    assert (result.report.search_model, result.report.optimizer, result.report.seed) == ("closed", "chain_dp", 7)


def test_auto_is_the_same_as_leaving_it_out(call: Call, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    call(*GPT2, "-o", one)
    call(*GPT2, "--microbatch", "auto", "--num-microbatches", "auto", "--num-stages", "auto", "-o", two)
    assert plan_file(one).result.plan == plan_file(two).result.plan
