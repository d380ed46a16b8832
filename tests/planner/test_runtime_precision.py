"""Training in bfloat16: bytes as the workload says, equal to the unpartitioned model in the same precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from runnable_models import HalfLoader, Loader
from running_plans import GPT2, SKIP, TIMEOUT_S, cut, placed
from strategies import chain_problem

from planner.errors import ExportError, InputError
from planner.options import SearchOptions
from planner.plan import Plan
from planner.precision import Precision, precision_of
from planner.problem import Problem
from planner.runtime import ExecutorKind, run
from planner.runtime.checkpoint import state_dict
from planner.runtime.updates import Updates, set_precision
from planner.service import plan
from planner.targets import TARGETS
from planner.workload import ReplicaMode, Training

MIXED = Precision(weights="bfloat16", gradients="float32", master=True)
HALF_GRADIENTS = Precision(weights="bfloat16", gradients="bfloat16", master=True)
PURE = Precision(weights="bfloat16", gradients="bfloat16")
TOLERANCE = 2.0**-6
"""Of the largest gradient, where samples are grouped differently: four times the spacing of bfloat16 below 1."""


def problem_in(dtype: str, weights: float, gradients: float, optimizer: float) -> Problem:
    found = chain_problem([(1.0, 2.0)] * 2, devices=2, num_microbatches=4)
    work = found.training
    assert work is not None
    work = replace(
        work,
        weight_bytes_per_parameter=weights,
        gradient_bytes_per_parameter=gradients,
        optimizer_bytes_per_parameter=optimizer,
    )
    profiles = tuple(replace(profile, dtype=dtype) for profile in found.profiles)
    return Problem(graph=found.graph, profiles=profiles, cluster=found.cluster, workload=work)


@pytest.mark.parametrize(
    ("dtype", "sizes", "precision"),
    [
        ("float32", (4, 4, 8), Precision(weights="float32", gradients="float32")),
        ("float64", (8, 8, 16), Precision(weights="float64", gradients="float64")),
        ("bfloat16", (2, 4, 12), MIXED),
        ("bfloat16", (2, 2, 12), HALF_GRADIENTS),
        ("bfloat16", (2, 2, 4), PURE),
    ],
)
def test_bytes_per_parameter_say_the_precision(
    dtype: str, sizes: tuple[float, float, float], precision: Precision
) -> None:
    problem = problem_in(dtype, *sizes)
    assert precision_of(problem) == precision
    found = plan(problem, SearchOptions(target="runtime")).plan
    assert found is not None
    assert TARGETS["runtime"].misfit(found, problem) == ""


@pytest.mark.parametrize(
    ("dtype", "sizes", "words"),
    [
        (
            "float32",
            (2, 4, 12),
            r"2 \+ 4 \+ 12 bytes per parameter for costs in float32: use 4 \+ 4 \+ 8 \(AdamW in fl",
        ),
        (
            "bfloat16",
            (2, 4, 8),
            r"use 2 \+ 2 \+ 4 .*; 2 \+ 4 \+ 12 \(bfloat16 with float32 master weights, gradients in f",
        ),
        ("float16", (2, 4, 12), "costs in float16: use costs in float64, float32, bfloat16"),
    ],
)
def test_other_bytes_are_refused_with_those_that_run(dtype: str, sizes: tuple[float, float, float], words: str) -> None:
    problem = problem_in(dtype, *sizes)
    with pytest.raises(ExportError, match=words):
        precision_of(problem)
    with pytest.raises(InputError, match=f"'runtime' cannot express .*{words}"):
        plan(problem, SearchOptions(target="runtime"))


def test_an_offloaded_optimizer_is_refused() -> None:
    problem = problem_in("float32", 4, 4, 8)
    assert isinstance(problem.workload, Training)
    offloaded = problem.with_workload(replace(problem.workload, offload_optimizer=True))
    with pytest.raises(ExportError, match="the host's memory: keep it on the devices"):
        precision_of(offloaded)
    with pytest.raises(InputError, match="the host's memory: keep it on the devices"):
        plan(offloaded, SearchOptions(target="runtime"))


@pytest.mark.parametrize(("precision", "sizes"), [(MIXED, (2, 4, 12)), (HALF_GRADIENTS, (2, 2, 12)), (PURE, (2, 2, 4))])
def test_as_many_bytes_are_held_as_the_workload_says(precision: Precision, sizes: tuple[int, int, int]) -> None:
    module = torch.nn.Linear(10, 10, bias=False).to(torch.bfloat16)
    set_precision(module, precision)
    updates = Updates(module.parameters(), precision, 1e-3)
    module(torch.ones(10, dtype=torch.bfloat16)).sum().backward()
    assert module.weight.grad is not None
    gradient_bytes = module.weight.grad.nbytes
    updates.step()
    counter = 4
    held = sum(tensor.nbytes for tensor in updates.held())
    assert (module.weight.nbytes, gradient_bytes, held - counter) == tuple(100 * size for size in sizes)
    assert torch.equal(module.weight, updates.weights(module.weight).to(torch.bfloat16))


PLANS = [
    cut(GPT2, (3,)),
    cut(GPT2, (3,), (2, 2), schedule="gpipe"),
    placed(GPT2, (1, 3, 5), "zb_v"),
]


@pytest.mark.parametrize("executor", [ExecutorKind.AUTO, ExecutorKind.OWN])
@pytest.mark.parametrize("made", PLANS)
def test_equal_pieces_give_equal_bits(made: Plan, executor: ExecutorKind) -> None:
    report = run(made, HalfLoader("gpt2_model"), num_steps=1, check=True, executor=executor, precision=MIXED)
    assert (report.loss_relative_difference, report.gradient_max_difference) == (0.0, 0.0)
    assert report.gradient_scale is not None
    assert report.gradient_scale > TOLERANCE


@pytest.mark.parametrize("made", [cut(GPT2, (3,), (2, 1)), cut(GPT2, (3,), num_microbatches=3)])
@pytest.mark.parametrize("precision", [MIXED, PURE])
def test_other_pieces_or_weights_give_the_same_up_to_rounding(precision: Precision, made: Plan) -> None:
    report = run(made, HalfLoader("gpt2_model"), num_steps=1, check=True, precision=precision, timeout_s=TIMEOUT_S)
    assert report.loss_relative_difference is not None
    assert report.gradient_max_difference is not None
    assert report.gradient_scale is not None
    assert report.loss_relative_difference <= TOLERANCE
    assert report.gradient_max_difference <= TOLERANCE * report.gradient_scale


def test_checkpoints_hold_the_master_weights_and_two_runs_are_equal(tmp_path: Path) -> None:
    loader, half = HalfLoader("skip_model"), tmp_path / "half"
    made = cut(SKIP, (2,), (2, 1), num_microbatches=3, replica_mode=ReplicaMode.DEALT)
    options = {"precision": MIXED, "timeout_s": TIMEOUT_S, "learning_rate": 1e-4}
    whole = [run(made, loader, num_steps=4, save=tmp_path / name, **options) for name in ("a", "b")]  # type: ignore[arg-type]
    run(made, loader, num_steps=2, save=half, **options)  # type: ignore[arg-type]
    rest = run(made, loader, num_steps=2, load=half, save=half, **options)  # type: ignore[arg-type]
    assert whole[0].losses == whole[1].losses
    assert rest.losses == whole[0].losses[2:]
    ended = [state_dict(tmp_path / name) for name in ("a", "b", "half")]
    model = loader(2).runnable.model
    assert model.load_state_dict(ended[0], strict=True)
    for name, tensor in ended[0].items():
        assert tensor.dtype is torch.float32
        assert torch.equal(tensor, ended[1][name])
        assert torch.equal(tensor, ended[2][name])
        assert not torch.equal(tensor, tensor.to(torch.bfloat16).float())  # finer than what the passes read


def test_a_model_in_another_dtype_is_the_callers_fault() -> None:
    with pytest.raises(InputError, match="built in float32, the plan's costs are in bfloat16: build the model in"):
        run(cut(SKIP, (2,)), Loader("skip_model"), num_steps=1, precision=MIXED, timeout_s=TIMEOUT_S)
