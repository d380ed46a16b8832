"""Real runs in real processes: equal to the unpartitioned model, in the schedule's order, ended cleanly."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

from runnable_models import ForeignReference, Loader
from running_plans import GPT2, GRADIENT_TOLERANCE, LOSS_TOLERANCE, SKIP, TIMEOUT_S, assert_gone, started

from planner.codec import dumps, loads
from planner.errors import InputError, RunError
from planner.plan import Plan, Stage
from planner.runtime import RunReport, run
from planner.schedules import SCHEDULES, PipelineShape
from planner.workload import Recomputation
from profiles.tracing import TraceLoader

__all__ = ["started"]


def make_plan(layers: tuple[str, ...], cuts: tuple[int, ...], replicas: int = 1, **options: Any) -> Plan:
    """Stages cut before the layers of the given positions, each with its own devices."""
    ends = (0, *cuts, len(layers))
    stages = tuple(
        Stage(layers=layers[a:b], replicas=tuple((f"cpu{s}.{r}",) for r in range(replicas)))
        for s, (a, b) in enumerate(pairwise(ends))
    )
    return Plan(stages=stages, **{"schedule": "1f1b", "microbatch_size": 2, "num_microbatches": 4} | options)


def checked(plan: Plan, source: str | TraceLoader) -> RunReport:
    """Three steps, the first equal to the unpartitioned model's (of a factory in runnable_models, or a recipe)."""
    loader = Loader(source) if isinstance(source, str) else source
    report = run(plan, loader, num_steps=3, check=True, timeout_s=TIMEOUT_S)
    assert report.loss_relative_difference is not None
    assert report.gradient_max_difference is not None
    assert report.loss_relative_difference <= LOSS_TOLERANCE
    assert report.gradient_max_difference <= GRADIENT_TOLERANCE
    model = loader(2).runnable.model
    compared = {id(model.get_parameter(name)) for name in report.gradient_differences}
    assert compared == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return report


def actions(report: RunReport, stage: int) -> list[str]:
    """The forward and backward actions of a stage in the order in which they ran."""
    assert report.timeline is not None
    labels = [span.label for span in report.timeline.lanes[stage].spans if span.category == "compute"]
    return [label for label in labels if not label.endswith("loss")]


@pytest.mark.parametrize(("schedule", "cut"), [("1f1b", 2), ("gpipe", 5)])
def test_two_stages_of_tied_gpt2_equal_the_whole_model(schedule: str, cut: int) -> None:
    report = checked(make_plan(GPT2, (cut,), schedule=schedule), "gpt2_model")
    shape = PipelineShape(num_stages=2, num_microbatches=4, dealt=(1, 1))
    for stage, worker in enumerate(SCHEDULES[schedule].workers(shape)):
        assert actions(report, stage) == [str(action) for action in worker.actions]
        assert report.timeline is not None
        assert report.timeline.lanes[stage].peak_in_flight == SCHEDULES[schedule].in_flight(shape, stage)
    assert len(report.losses) == report.steps == 3
    assert len(report.iteration_times_s) == report.steps - report.num_warm_up
    assert loads(RunReport, dumps(report)) == report


def test_replicas_and_stages_of_a_configuration_equal_the_whole_model() -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 8}
    layers = ("transformer.wte", "transformer.h.0", "transformer.h.1", "lm_head", "loss")
    report = checked(make_plan(layers, (2,), replicas=2), TraceLoader(source=config))
    assert [stage.devices for stage in report.stages] == [("cpu0.0", "cpu0.1"), ("cpu1.0", "cpu1.1")]


def test_replicas_alone_equal_the_whole_model() -> None:
    checked(make_plan(SKIP, (), replicas=2), "skip_model")


def test_a_tensor_that_skips_a_stage_is_relayed() -> None:
    checked(make_plan(SKIP, (1, 3)), "skip_model")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_strided_tensors_and_gradients_are_sent(schedule: str) -> None:
    checked(make_plan(("0", "1", "2"), (1, 2), schedule=schedule), "strided_model")


def test_a_stage_without_trained_parameters_runs() -> None:
    report = checked(make_plan(SKIP, (1, 3)), "frozen_model")
    assert set(report.gradient_differences) == {f"blocks.{i}.linear.{p}" for i in (2, 3) for p in ("weight", "bias")}


def test_early_backward_needs_less_memory_than_gpipe() -> None:
    peaks = []
    for schedule in ("1f1b", "gpipe"):
        plan = make_plan(SKIP, (3,), schedule=schedule, microbatch_size=64, num_microbatches=8)
        peaks.append(run(plan, Loader("skip_model"), num_steps=1, timeout_s=TIMEOUT_S).stages[0].peak_memory_bytes)
    assert peaks[0] < peaks[1]


def test_recomputation_equals_the_whole_model_in_less_memory() -> None:
    kept = make_plan(SKIP, (3,), schedule="gpipe", microbatch_size=64, num_microbatches=8)
    stages = tuple(replace(stage, recomputation=Recomputation.FULL) for stage in kept.stages)
    recomputed = checked(replace(kept, stages=stages), "skip_model")
    normal = run(kept, Loader("skip_model"), num_steps=1, timeout_s=TIMEOUT_S)
    assert recomputed.stages[0].peak_memory_bytes < normal.stages[0].peak_memory_bytes


def test_the_check_sees_a_different_model() -> None:
    loader = ForeignReference("skip_model")
    report = run(make_plan(SKIP, (2,)), loader, num_steps=1, check=True, timeout_s=TIMEOUT_S)
    assert report.loss_relative_difference is not None
    assert report.loss_relative_difference > LOSS_TOLERANCE
    assert min(report.gradient_differences.values()) > GRADIENT_TOLERANCE


def test_a_killed_rank_is_named_and_nothing_stays(started: list[int]) -> None:
    with pytest.raises(
        RunError, match=r"rank 1 \(stage 1, replica 0, device cpu1\.0\) failed: was killed by .*SIGKILL"
    ):
        run(make_plan(SKIP, (2,)), Loader("killed_model"), num_steps=2, timeout_s=TIMEOUT_S)
    assert_gone(started)


def test_a_failing_rank_says_why(started: list[int]) -> None:
    with pytest.raises(RunError, match=r"rank 1 .* no loss today"):
        run(make_plan(SKIP, (2,)), Loader("failing_model"), num_steps=2, timeout_s=TIMEOUT_S)
    assert_gone(started)


def test_integers_between_stages_are_refused(started: list[int]) -> None:
    with pytest.raises(RunError, match=r"stage 0 would send tensor .*int64.* to stage 1.*into one stage"):
        run(make_plan(("first", "second", "loss"), (1,)), Loader("codes_model"), num_steps=1, timeout_s=TIMEOUT_S)
    assert_gone(started)


def test_a_plan_of_other_layers_is_the_callers_fault(started: list[int]) -> None:
    with pytest.raises(InputError, match=r"rank . .*'blocks\.9', which is not a layer"):
        run(make_plan(("blocks.0", "blocks.9"), (1,)), Loader("skip_model"), num_steps=1, timeout_s=TIMEOUT_S)
    assert_gone(started)


def test_a_late_run_is_ended(started: list[int]) -> None:
    with pytest.raises(RunError, match=r"did not finish within 0\.01 s; still running: rank 0 .*, rank 1"):
        run(make_plan(SKIP, (2,)), Loader("skip_model"), num_steps=1, timeout_s=0.01)
    assert_gone(started)


def test_an_error_in_the_caller_leaves_nothing_behind(started: list[int]) -> None:
    def interrupt(done: int, steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_plan(SKIP, (2,)), Loader("skip_model"), num_steps=9, timeout_s=TIMEOUT_S, on_progress=interrupt)
    assert_gone(started)
