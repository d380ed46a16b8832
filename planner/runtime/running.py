"""`run`: trains some steps by a plan in one process per device, and measures."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import ExportError, InputError, RunError
from planner.grid import Grid, check_microbatches, grid_of
from planner.plan import Plan
from planner.runtime.launch import Launcher
from planner.runtime.merge import merge
from planner.runtime.report import RunReport
from planner.runtime.spec import RunSpec

if TYPE_CHECKING:
    from planner.runtime.program import ProgramLoader

ENGINE = "the runtime"
RUNNABLE_SCHEDULES = ("1f1b", "gpipe")
DEFAULT_TIMEOUT_S = 600.0

OnProgress = Callable[[int, int, float], None]
"""Called with (steps done, steps in all, loss of the last one) from the thread that called `run`."""


def run(
    plan: Plan,
    loader: ProgramLoader,
    *,
    num_steps: int = 5,
    check: bool = False,
    seed: int = 0,
    learning_rate: float = 1e-3,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_progress: OnProgress | None = None,
) -> RunReport:
    """Train `num_steps` steps of `loader`'s model by `plan` on this machine, one process per device (gloo, CPU).

    Step k trains on the batch of seed `seed + k`, with AdamW. `check` compares loss and gradients of the first step
    with the unpartitioned model. The loader must be importable by other processes. Each process builds and traces the
    whole model and then keeps its own stage.

    Raises ExportError naming the stage for what cannot be run (unequal or dealt replication, tensor or context degrees,
    ZeRO, other schedules) and InputError for bad arguments, both before any process starts; RunError
    naming the rank and its words when one fails, or when `timeout_s` is over. No process outlives the call.
    """
    _check_arguments(num_steps, learning_rate, timeout_s)
    grid = check_runnable(plan)
    if importlib.util.find_spec("torch") is None:
        raise RunError("running a plan needs torch, which is not installed: pip install 'pipeplan[torch]'")
    with tempfile.TemporaryDirectory(prefix="pipeplan-run-", ignore_cleanup_errors=True) as folder:
        spec = RunSpec(
            plan=plan,
            grid=grid,
            loader=loader,
            num_steps=num_steps,
            check=check,
            seed=seed,
            learning_rate=learning_rate,
            timeout_s=timeout_s,
            folder=Path(folder),
        )
        with Launcher(spec) as launcher:
            results = launcher.results(lambda done, loss: on_progress(done, num_steps, loss) if on_progress else None)
    return merge(spec, results)


def check_runnable(plan: Plan) -> Grid:
    """The device grid of a plan that `run` can run; ExportError naming the stage and the remedy otherwise."""
    grid = grid_of(plan, ENGINE)
    for number, stage in enumerate(plan.stages):
        for field, value in (("tensor", stage.tensor), ("context", stage.context), ("expert", stage.expert)):
            if value != 1:
                _refuse(number, field, f"has {field} degree {value}", f"plan with {field} degree 1")
        if stage.zero:
            _refuse(number, "zero", f"shards by ZeRO stage {stage.zero}", "plan with ZeRO stage 0")
        if any(len(group) != 1 for group in stage.replicas):
            _refuse(number, "replicas", "has a replica of several devices", "give each replica one device")
    if plan.schedule not in RUNNABLE_SCHEDULES:
        known = " or ".join(RUNNABLE_SCHEDULES)
        raise ExportError(f"{ENGINE} has no schedule {plan.schedule!r}: plan with {known}", pointer="/schedule")
    check_microbatches(plan, ENGINE)
    return grid


def _refuse(number: int, field: str, what: str, remedy: str) -> None:
    raise ExportError(f"stage {number} {what}, which {ENGINE} cannot do: {remedy}", pointer=f"/stages/{number}/{field}")


def _check_arguments(num_steps: int, learning_rate: float, timeout_s: float) -> None:
    if num_steps < 1:
        raise InputError(f"the number of steps is {num_steps}: run at least 1", pointer="/num_steps")
    if not 0 < learning_rate < float("inf"):
        raise InputError(
            f"the learning rate is {learning_rate!r}: it must be above 0 and finite", pointer="/learning_rate"
        )
    if not 0 < timeout_s < float("inf"):
        raise InputError(f"the time limit is {timeout_s!r} s: it must be above 0 and finite", pointer="/timeout_s")
