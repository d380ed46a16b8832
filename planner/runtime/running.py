"""`run`: trains some steps by a plan in one process per device, and measures."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError, RunError
from planner.plan import Plan
from planner.precision import Precision
from planner.runtime.abilities import ExecutorKind, check_runnable, chosen, divides
from planner.runtime.checkpoint import read_index
from planner.runtime.launch import Launcher
from planner.runtime.merge import merge
from planner.runtime.report import RunReport
from planner.runtime.spec import RunSpec, TurnsSpec

if TYPE_CHECKING:
    from planner.runtime.program import ProgramLoader

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
    executor: ExecutorKind = ExecutorKind.AUTO,
    save: Path | None = None,
    load: Path | None = None,
    precision: Precision | None = None,
    on_progress: OnProgress | None = None,
) -> RunReport:
    """Train `num_steps` steps of `loader`'s model by `plan` on this machine, one process per device (gloo, CPU).

    Step k trains on the batch of seed `seed + k`, with AdamW. `check` compares loss and gradients of the first step
    with the unpartitioned model. `executor` AUTO takes torch's schedules where they can express the plan, else our own
    action lists. `save` names a folder for a checkpoint after the last step; `load` one to start from, of any plan of
    the same model: weights, optimizer state and number of steps go on. `precision` (see `precision_of`) says in
    which dtype gradients are summed and whether float32 copies of the weights are trained; None: everything in the
    dtype of the weights. The loader must be importable by other processes. Each process builds and traces the whole
    model and then keeps its own stages.

    Raises ExportError naming the stage for what cannot be run (tensor, context or expert degrees, ZeRO 2 and 3 with
    dealt microbatches; with the executor TORCH also what torch's schedules cannot express) and InputError for bad
    arguments, both before any process starts; RunError naming the rank and its words when one fails, or when
    `timeout_s` is over. No process outlives the call.
    """
    _check_arguments(num_steps, learning_rate, timeout_s)
    layout = check_runnable(plan, executor)
    if load is not None:
        read_index(load)
    if save is not None:
        _make_folder(save)
    with shared_folder() as folder:
        spec = RunSpec(
            plan=plan,
            layout=layout,
            executor=chosen(plan, executor),
            loader=loader,
            num_steps=num_steps,
            check=check,
            seed=seed,
            learning_rate=learning_rate,
            timeout_s=timeout_s,
            folder=folder,
            save=save,
            load=load,
            precision=precision,
        )
        with Launcher(spec) as launcher:
            results = launcher.results(lambda done, loss: on_progress(done, num_steps, loss) if on_progress else None)
    return merge(spec, results)


def run_in_turn(
    plans: Sequence[tuple[Plan, ExecutorKind]],
    loader: ProgramLoader,
    *,
    num_steps: int,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    seed: int = 0,
) -> list[RunReport]:
    """Measure several plans of one model in the same processes: a step of each, then the next round.

    What drifts on the machine meets all plans alike, so that their iteration times compare better than those of
    separate runs. The plans share the model's weights: losses say nothing. Errors as in `run`; InputError where the
    plans need different numbers of devices.
    """
    _check_arguments(num_steps, 1.0, timeout_s)
    if any(divides(stage) for plan, _ in plans for stage in plan.stages):
        raise InputError("plans that run in turn share weights, which ZeRO divides: run each alone", pointer="/plans")
    layouts = [check_runnable(plan, executor) for plan, executor in plans]
    counts = sorted({layout.num_ranks for layout in layouts})
    if len(counts) != 1:
        raise InputError(f"plans that run in turn use {counts} devices: give plans on equally many", pointer="/plans")
    with shared_folder() as folder:
        runs = tuple(
            RunSpec(
                plan=plan,
                layout=layout,
                executor=chosen(plan, executor),
                loader=loader,
                num_steps=num_steps,
                check=False,
                seed=seed,
                learning_rate=1e-5,
                timeout_s=timeout_s,
                folder=folder,
            )
            for (plan, executor), layout in zip(plans, layouts, strict=True)
        )
        with Launcher(TurnsSpec(runs=runs)) as launcher:
            by_rank = launcher.results(lambda done, loss: None)
    return [merge(spec, [results[number] for results in by_rank]) for number, spec in enumerate(runs)]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A temporary folder for the ranks of a job; RunError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise RunError("running a plan needs torch, which is not installed: pip install 'pipeplan[torch]'")
    with tempfile.TemporaryDirectory(prefix="pipeplan-run-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _check_arguments(num_steps: int, learning_rate: float, timeout_s: float) -> None:
    if num_steps < 1:
        raise InputError(f"the number of steps is {num_steps}: run at least 1", pointer="/num_steps")
    if not 0 < learning_rate < float("inf"):
        raise InputError(
            f"the learning rate is {learning_rate!r}: it must be above 0 and finite", pointer="/learning_rate"
        )
    if not 0 < timeout_s < float("inf"):
        raise InputError(f"the time limit is {timeout_s!r} s: it must be above 0 and finite", pointer="/timeout_s")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"the folder {folder} cannot be made ({fault}): name another", pointer="/save") from None
