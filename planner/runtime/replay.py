"""One rank's part of a plan, alone: its passes and its optimizer as they are, what other ranks would send made up.

So that the busy time and the memory of one rank can be measured where the plan's other devices are not at hand.
Received tensors are filled with small numbers, sent ones are held as long as a transfer would hold them and then
dropped, sums of gradients among ranks are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from planner.errors import InputError
from planner.graph import NOUN_CONFIG
from planner.plan import Plan
from planner.precision import Precision
from planner.runtime.abilities import ExecutorKind, check_runnable
from planner.runtime.job import Seat
from planner.runtime.launch import Launcher
from planner.runtime.running import DEFAULT_TIMEOUT_S, shared_folder
from planner.runtime.spec import RunSpec, StepRecord

if TYPE_CHECKING:
    from planner.runtime.program import ProgramLoader

WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What one rank did alone: medians over the steps after the first two (over all, where there are no more).

    `busy_s` are seconds of all passes and losses of one iteration, `passes_s` those of one pass by stage and kind
    (`2F`), `optimizer_s` those of the optimizer: CPU seconds of the computing thread, on a GPU seconds between events
    of its stream. `peak_memory_bytes` is at allocator level.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    rank: int
    devices: tuple[str, ...]
    steps: int
    busy_s: float
    optimizer_s: float
    passes_s: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """The job: one process that acts as rank `rank` of `run`, on `device` (`cpu` or `cuda`)."""

    run: RunSpec
    rank: int
    device: str

    @property
    def folder(self) -> Path:
        """The run's."""
        return self.run.folder

    @property
    def timeout_s(self) -> float:
        """The run's."""
        return self.run.timeout_s

    @property
    def loader(self) -> ProgramLoader:
        """The run's."""
        return self.run.loader

    @property
    def num_ranks(self) -> int:
        """Nobody else."""
        return 1

    def name(self, rank: int) -> str:
        """That of the rank it acts for."""
        return f"the replay of {self.run.name(self.rank)}"

    def work(self, seat: Seat) -> tuple[tuple[StepRecord, ...], int]:
        """The steps and the peak. Imports torch."""
        from planner.runtime.alone import run_alone

        return run_alone(self, seat)


def replay(
    plan: Plan,
    loader: ProgramLoader,
    rank: int,
    *,
    num_steps: int = 5,
    seed: int = 0,
    device: str = "cpu",
    precision: Precision | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> ReplayReport:
    """Run the actions of one rank of a plan by our own executor, with transfers stubbed.

    InputError for a rank that the plan does not have; other errors as in `run`.
    """
    layout = check_runnable(plan, ExecutorKind.OWN)
    if not 0 <= rank < layout.num_ranks:
        raise InputError(
            f"the plan has no rank {rank}: replay one of 0 to {layout.num_ranks - 1}", pointer="/replay_rank"
        )
    with shared_folder() as folder:
        run = RunSpec(
            plan=plan,
            layout=layout,
            executor=ExecutorKind.OWN,
            loader=loader,
            num_steps=num_steps,
            check=False,
            seed=seed,
            learning_rate=1e-5,
            timeout_s=timeout_s,
            folder=folder,
            precision=precision,
        )
        with Launcher(ReplaySpec(run=run, rank=rank, device=device)) as launcher:
            ((steps, peak),) = launcher.results(lambda done, loss: None)
    return _report(run, rank, steps, peak)


def _report(run: RunSpec, rank: int, steps: tuple[StepRecord, ...], peak: int) -> ReplayReport:
    measured = steps[WARM_UP_STEPS:] or steps
    group, replica = run.layout.seat(rank)
    counts = _counts(steps[-1])
    return ReplayReport(
        rank=rank,
        devices=run.layout.groups[group][replica],
        steps=len(steps),
        busy_s=statistics.median(sum(step.passes_s.values()) for step in measured),
        optimizer_s=statistics.median(step.optimizer_s for step in measured),
        passes_s={kind: _median(kind, measured) / counts[kind] for kind in sorted(counts)},
        peak_memory_bytes=peak,
    )


def _median(kind: str, steps: Iterable[StepRecord]) -> float:
    return statistics.median(step.passes_s[kind] for step in steps)


def _counts(step: StepRecord) -> Mapping[str, int]:
    """How many passes of each kind a step has: the losses as many as the forwards of their stage."""
    found: dict[str, int] = {}
    for span in step.spans:
        kind = span.label if span.label in step.passes_s else span.label.rstrip("0123456789")
        if kind in step.passes_s:
            found[kind] = found.get(kind, 0) + 1
    return found
