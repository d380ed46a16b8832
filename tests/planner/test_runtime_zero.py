"""ZeRO among the replicas of a stage: equal to the unpartitioned model, in the memory that it promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from runnable_models import WIDE, HalfLoader, Loader
from running_plans import GPT2, GRADIENT_TOLERANCE, LOSS_TOLERANCE, SKIP, TIMEOUT_S, checked, cut, placed
from strategies import chain_problem

from planner.errors import InputError
from planner.options import Decision, SearchOptions
from planner.plan import Plan
from planner.precision import Precision
from planner.runtime import ExecutorKind, replay, run
from planner.runtime.checkpoint import state_dict
from planner.runtime.running import run_in_turn
from planner.service import plan as search
from planner.workload import Recomputation, ReplicaMode

MIXED = Precision(weights="bfloat16", gradients="float32", master=True)
FLOAT_BYTES = 4
FEW = 4
"""Layers in float32: those whose gradient or weights are whole at one time, and what is received of them."""
TOLERANCE = 2.0**-6
"""Of the largest gradient: layers of their own add up gradients in another order, which rounds in bfloat16."""
TWELVE = tuple(map(str, range(12)))
DEALT = {"num_microbatches": 3, "replica_mode": ReplicaMode.DEALT}


def zero(plan: Plan, *levels: int, **fields: Any) -> Plan:
    """The plan with these ZeRO stages, the last one for the rest."""
    given = [*levels, *levels[-1:] * len(plan.stages)]
    stages = (replace(stage, zero=given[number], **fields) for number, stage in enumerate(plan.stages))
    return replace(plan, stages=tuple(stages))


@pytest.mark.parametrize(
    ("plan", "factory"),
    [
        (zero(cut(GPT2, (3,), (2, 2)), 1), "gpt2_model"),
        (zero(cut(GPT2, (3,), (2, 2)), 2), "gpt2_model"),
        (zero(cut(GPT2, (3,), (2, 2)), 3), "gpt2_model"),
        (zero(cut(GPT2, (3,), (2, 2)), 3, reshard=False), "gpt2_model"),
        (zero(cut(GPT2, (), (2,)), 3), "gpt2_model"),
        (zero(cut(GPT2, (3,), (2, 2)), 3, recomputation=Recomputation.FULL), "gpt2_model"),
        (zero(cut(GPT2, (3,), (3, 1), microbatch_size=3), 3), "gpt2_model"),
        (zero(cut(SKIP, (1, 3), (2, 2, 2), schedule="zb_h1"), 3, 2, 1), "skip_model"),
        (zero(cut(SKIP, (1, 3), (2, 2, 2)), 3), "frozen_model"),
        (zero(cut(SKIP, (2,), (2, 1), **DEALT), 1), "skip_model"),
    ],
)
def test_divided_stages_equal_the_whole_model(plan: Plan, factory: str) -> None:
    checked(plan, factory)


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "zb_v"])
def test_virtual_stages_are_divided_each_by_its_own_stage(schedule: str) -> None:
    made = placed(GPT2, (1, 3, 5), schedule)
    wide = tuple(
        replace(stage, replicas=tuple((f"{device}.{twin}",) for (device,) in stage.replicas for twin in (0, 1)))
        for stage in made.stages
    )
    checked(zero(replace(made, stages=wide), 3, 1, 2, 0), "gpt2_model")


def test_each_stage_of_zero_holds_what_it_promises() -> None:
    """Of one replica of two: 16 bytes per parameter, less half of the optimizer's, the gradients', the weights'."""
    one, count = WIDE * WIDE * FLOAT_BYTES, len(TWELVE)
    plan = cut(TWELVE, (), (2,), microbatch_size=2, num_microbatches=2)
    peaks = []
    for level in range(1, 4):
        report = run(zero(plan, level), Loader("wide_model"), num_steps=1, executor=ExecutorKind.OWN)
        peaks.append(report.stages[0].peak_memory_bytes / one)
    promised = [count * (4 - saved) for saved in (1.0, 1.5, 2.0)]
    for peak, least in zip(peaks, promised, strict=True):
        assert least <= peak <= least + FEW
    assert peaks == sorted(peaks, reverse=True)


def test_mixed_precision_divides_its_master_weights() -> None:
    plan = zero(cut(TWELVE, (), (2,), microbatch_size=2, num_microbatches=2), 3)
    report = run(plan, HalfLoader("wide_model"), num_steps=1, precision=MIXED, check=True, timeout_s=TIMEOUT_S)
    assert report.loss_relative_difference == 0.0
    assert report.gradient_max_difference is not None
    assert report.gradient_scale is not None
    assert report.gradient_max_difference <= TOLERANCE * report.gradient_scale
    one, count = WIDE * WIDE, len(TWELVE)
    promised = count * (2 + 4 + 12) / 2
    assert promised <= report.stages[0].peak_memory_bytes / one <= promised + FEW * FLOAT_BYTES


@pytest.mark.parametrize("precision", [None, MIXED])
def test_what_one_division_saved_another_one_continues(tmp_path: Path, precision: Precision | None) -> None:
    loader = Loader("skip_model") if precision is None else HalfLoader("skip_model")
    options: dict[str, Any] = {"precision": precision, "timeout_s": TIMEOUT_S, "executor": ExecutorKind.OWN}
    plan = cut(SKIP, (2,), (2, 2))
    whole = run(plan, loader, num_steps=4, save=tmp_path / "whole", **options)
    losses = []
    for step, levels in enumerate([(3, 1), (0, 2), (1, 3), (2, 0)]):
        given = {} if step == 0 else {"load": tmp_path / "state"}
        losses += run(zero(plan, *levels), loader, num_steps=1, save=tmp_path / "state", **options, **given).losses
    assert losses == pytest.approx(whole.losses, rel=1e-6 if precision is None else TOLERANCE)
    found, wanted = state_dict(tmp_path / "state"), state_dict(tmp_path / "whole")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert tensor.dtype is torch.float32
        torch.testing.assert_close(found[name], tensor, rtol=0.0, atol=1e-7 if precision is None else 1e-4)


def test_two_runs_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    plan = zero(cut(GPT2, (3,), (2, 1), microbatch_size=2), 3)
    for name in ("a", "b"):
        run(plan, Loader("gpt2_model"), num_steps=2, timeout_s=TIMEOUT_S, save=tmp_path / name)
    first, second = (state_dict(tmp_path / name) for name in ("a", "b"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_a_rank_alone_holds_what_it_holds_in_the_run() -> None:
    plan = zero(cut(TWELVE, (6,), (2, 2), microbatch_size=2, num_microbatches=2), 3)
    loader = Loader("wide_model")
    whole = run(plan, loader, num_steps=1, timeout_s=TIMEOUT_S)
    alone = replay(plan, loader, 3, num_steps=1, timeout_s=TIMEOUT_S)
    assert alone.peak_memory_bytes == pytest.approx(whole.stages[1].peak_memory_bytes, rel=0.05)


def test_plans_in_turn_share_weights_and_divide_none() -> None:
    plan = zero(cut(SKIP, (), (2,)), 3)
    with pytest.raises(InputError, match="share weights, which ZeRO divides: run each alone"):
        run_in_turn([(plan, ExecutorKind.OWN)], Loader("skip_model"), num_steps=1)


def test_zero_is_searched_for_the_runtime() -> None:
    """Weights that fit only where they are divided."""
    sizes = {"parameter_bytes": [400] * 2, "memory_bytes": 3000}
    problem = chain_problem([(1.0, 2.0)] * 2, devices=2, num_microbatches=4, microbatch_size=2, **sizes)
    options = SearchOptions(target="runtime", num_stages=1, searched=(Decision.ZERO,))
    found = search(problem, options).plan
    assert found is not None
    assert found.stages[0].zero > 0
    dealt = search(problem, replace(options, replica_mode=ReplicaMode.DEALT)).plan
    assert dealt is None or dealt.stages[0].zero <= 1
    work = replace(problem.training, zero=3)  # type: ignore[type-var]
    with pytest.raises(InputError, match="ZeRO stage 3 with dealt microbatches: use 0 or 1, or replica mode split"):
        search(problem.with_workload(work), replace(options, replica_mode=ReplicaMode.DEALT, searched=()))  # type: ignore[arg-type]


assert GRADIENT_TOLERANCE == LOSS_TOLERANCE == 1e-5  # of `checked`
