"""`pipeplan run`: train some steps by a plan on this machine, and compare with what was predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.commands.opening import opened
from api.commands.options import JsonOption, PlanArgument, ProblemOption
from api.commands.sourcing import Reading, read_source
from planner.errors import InputError, RunError
from planner.precision import precision_of
from planner.runtime.abilities import ExecutorKind
from profiles.model import ModelSource

if TYPE_CHECKING:
    from api.plan_file import OpenedPlan
    from planner.runtime.report import RunReport


class ReplayDevice(StrEnum):
    """Where one rank is replayed."""

    CPU = "cpu"
    CUDA = "cuda"


def command(
    plan: PlanArgument,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps.")] = 5,
    check: Annotated[
        bool, typer.Option("--check", help="Compare loss and gradients with the unpartitioned model.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="SOURCE", help="config.json or module:factory, if the plan has none"),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="With --model: tokens per sample.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights and data (default: the plan's).")] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=1.0, help="End the run with an error after so many seconds.")
    ] = 600.0,
    executor: Annotated[
        ExecutorKind, typer.Option("--executor", help="torch's schedules, our own action lists, or what fits the plan.")
    ] = ExecutorKind.AUTO,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Write a checkpoint after the last step.")
    ] = None,
    load: Annotated[
        Path | None, typer.Option("--load", metavar="DIR", help="Go on from a checkpoint, of any plan of the model.")
    ] = None,
    replay_rank: Annotated[
        int | None,
        typer.Option("--replay-rank", min=0, metavar="R", help="Run the actions of one rank alone, transfers stubbed."),
    ] = None,
    device: Annotated[
        ReplayDevice, typer.Option("--device", help="With --replay-rank: where that rank runs.")
    ] = ReplayDevice.CPU,
    problem: ProblemOption = None,
    json: JsonOption = False,
) -> None:
    """Train some steps by a plan: one process per device, on this machine's cores, with synthetic data.

    Shows predicted beside measured time and memory.

    With --check, exit status 1 when the run does not compute what the unpartitioned model computes.

    With --replay-rank, shows busy time and peak memory of that rank alone beside the predicted ones.

    A plan whose model is `module:factory` runs that Python function.
    """
    from api.terminal.run_view import is_equal

    given = opened(plan, problem)
    _check_training(given)
    source = _source(given, model, sequence_length, seed)
    if replay_rank is not None:
        _replay(given, source, replay_rank, device, steps, timeout_s, json)
        return
    how = _How(steps=steps, check=check, timeout_s=timeout_s, executor=executor, save=save, load=load)
    report = _trained(given, source, how)
    _show(given, report, json)
    if not is_equal(report):
        raise RunError("the run differs from the unpartitioned model by more than the limits: please report this plan")


def _replay(
    given: OpenedPlan, source: ModelSource, rank: int, device: ReplayDevice, steps: int, timeout_s: float, json: bool
) -> None:
    from api.terminal.console import output
    from api.terminal.run_view import show_replay
    from planner import codec
    from planner.runtime import replay
    from planner.service import simulate
    from profiles.recipes import loader_of

    report = replay(
        given.plan,
        loader_of(source),
        rank,
        num_steps=steps,
        seed=source.seed,
        device=device.value,
        precision=precision_of(given.problem),
        timeout_s=timeout_s,
    )
    if json:
        typer.echo(codec.dumps(report), nl=False)
    else:
        show_replay(simulate(given.problem, given.plan), report, output())


def _check_training(given: OpenedPlan) -> None:
    """InputError for a plan of an inference problem: its predictions are of forward passes only."""
    if given.problem.training is None:
        raise InputError(
            "the plan is for inference, and run trains: plan the training workload (without --inference)",
            pointer="/problem/workload",
        )


def _source(given: OpenedPlan, model: str | None, sequence_length: int | None, seed: int | None) -> ModelSource:
    """The recipe of the plan's model, or of the one that is named instead."""
    source = given.source
    if model is not None:
        length = sequence_length or given.problem.workload.sequence_length
        dtype = given.problem.profiles[0].dtype
        source = _built(read_source(model, Reading(sequence_length=length, dtype=dtype)), model)
    if source is None:
        raise InputError(
            "the plan does not say how to build its model (it was planned from costs alone): name a config.json or "
            "module:factory with --model"
        )
    return source if seed is None else replace(source, seed=seed)


def _built(found: object, name: str) -> ModelSource:
    if isinstance(found, ModelSource):
        return found
    raise InputError(f"{name!r} is no model that can be built: name a transformers config.json or module:factory")


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """The options of a run."""

    steps: int
    check: bool
    timeout_s: float
    executor: ExecutorKind
    save: Path | None
    load: Path | None


def _trained(given: OpenedPlan, source: ModelSource, how: _How) -> RunReport:
    from api.terminal.progress import progress_bar
    from planner.runtime import check_runnable, run
    from profiles.recipes import loader_of

    check_runnable(given.plan, how.executor)
    with progress_bar("training") as advance:
        return run(
            given.plan,
            loader_of(source),
            num_steps=how.steps,
            check=how.check,
            seed=source.seed,
            timeout_s=how.timeout_s,
            executor=how.executor,
            save=how.save,
            load=how.load,
            precision=precision_of(given.problem),
            on_progress=lambda done, total, loss: advance(done, total, f"loss {loss:.4f}"),
        )


def _show(given: OpenedPlan, report: RunReport, json: bool) -> None:
    from api.terminal.console import output
    from api.terminal.run_view import show_run
    from planner import codec
    from planner.service import estimate

    if json:
        typer.echo(codec.dumps(report), nl=False)
    else:
        show_run(given.plan, estimate(given.problem, given.plan), report, output())
