"""One rank alone, transfers stubbed: the same passes in the same memory as in the whole run."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from runnable_models import Loader
from running_plans import GPT2, SKIP, TIMEOUT_S, cut, placed

from planner.errors import InputError, RunError
from planner.plan import Plan
from planner.runtime import ExecutorKind, alone, replay, run
from planner.runtime.action_lists import actions_of
from planner.runtime.layout import layout_of

PEAK_TOLERANCE = 0.03
"""Of peaks at allocator level, the small buffers of transfers apart."""


@pytest.mark.parametrize(
    "plan", [cut(GPT2, (3,)), placed(GPT2, (1, 3, 5), "zb_v"), cut(GPT2, (3,), (2, 1), microbatch_size=4)]
)
def test_a_replay_needs_the_memory_of_the_run(plan: Plan) -> None:
    loader = Loader("gpt2_model")
    whole = run(plan, loader, num_steps=2, executor=ExecutorKind.OWN, timeout_s=TIMEOUT_S)
    assert whole.timeline is not None
    for rank, lane in enumerate(whole.timeline.lanes):
        report = replay(plan, loader, rank, num_steps=2, timeout_s=TIMEOUT_S)
        assert report.devices == lane.devices
        assert report.peak_memory_bytes == pytest.approx(lane.peak_memory_bytes, rel=PEAK_TOLERANCE)


def test_a_replay_runs_the_actions_of_its_rank() -> None:
    plan = cut(SKIP, (1, 3), schedule="zb_h1")
    report = replay(plan, Loader("skip_model"), 1, num_steps=1, timeout_s=TIMEOUT_S)
    kinds = {str(action).rstrip("0123456789") for action in actions_of(plan, layout_of(plan), 1)}
    assert set(report.passes_s) == kinds
    assert report.busy_s == pytest.approx(sum(report.passes_s.values()) * plan.num_microbatches)
    assert report.optimizer_s > 0


def test_a_rank_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="the plan has no rank 2: replay one of 0 to 1"):
        replay(cut(SKIP, (2,)), Loader("skip_model"), 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_a_replay_on_one_says_so() -> None:
    with pytest.raises(RunError, match="no CUDA device that torch can use: replay on cpu"):
        replay(cut(SKIP, (2,)), Loader("skip_model"), 0, num_steps=1, device="cuda", timeout_s=TIMEOUT_S)


def test_a_program_moves_to_a_device() -> None:
    program = alone.placed(Loader("gpt2_model")(2), "meta")
    assert all(parameter.is_meta for parameter in program.module.parameters())
    inputs, target = program.runnable.make_batch(2, 0)
    assert target.is_meta
    assert program.module(*inputs).is_meta
