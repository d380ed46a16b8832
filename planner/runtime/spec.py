"""What the parent hands to every rank of a run, and what a rank hands back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.plan import Plan
from planner.precision import Precision
from planner.runtime.abilities import ExecutorKind
from planner.runtime.job import Seat
from planner.runtime.layout import Layout
from planner.timeline import Span

if TYPE_CHECKING:
    from planner.runtime.program import ProgramLoader
    from planner.runtime.reference import Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run, the same for all ranks. `folder` holds the rendezvous file and whatever the ranks exchange.

    `executor` is TORCH or OWN. `save` and `load` are folders of checkpoints; None for none. `precision` None trains
    the model in the dtype in which it is built.
    """

    plan: Plan
    layout: Layout
    executor: ExecutorKind
    loader: ProgramLoader
    num_steps: int
    check: bool
    seed: int
    learning_rate: float
    timeout_s: float
    folder: Path
    save: Path | None = None
    load: Path | None = None
    precision: Precision | None = None

    @property
    def global_batch_size(self) -> int:
        """Samples per step."""
        return self.plan.microbatch_size * self.plan.num_microbatches

    @property
    def num_ranks(self) -> int:
        """One process per device of the plan."""
        return self.layout.num_ranks

    def name(self, rank: int) -> str:
        """See `Layout.name`."""
        return self.layout.name(rank)

    def work(self, seat: Seat) -> RankResult:
        """Train. Imports torch."""
        from planner.runtime.training import train

        return train(self, seat)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step on one rank. Wall times are readings of the monotonic clock, which all ranks of a machine share.

    Forward and backward seconds are per stage of the rank; the loss is the mean over the rank's own samples.
    `busy_s` are CPU seconds of the computing thread, `process_s` those of all threads (transfers run in others);
    `passes_s` are the computing thread's per kind of pass, such as `2F`, with the loss as `2loss`. `run_queue_s` is how
    long that thread waited for its core, on a virtual machine also for the host to give it back. `reference_s` is what
    a fixed piece of work took right before (`Gauge`), where that was asked for.
    """

    start_s: float
    end_s: float
    forward_s: dict[int, float]
    backward_s: dict[int, float]
    all_reduce_s: float
    optimizer_s: float
    busy_s: float
    process_s: float
    passes_s: dict[str, float]
    run_queue_s: float | None
    loss: float | None
    peak_in_flight: int
    spans: tuple[Span, ...]
    reference_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """Everything that one rank measured. The differences are None without a check."""

    steps: tuple[StepRecord, ...]
    peak_memory_bytes: int
    core: int | None
    num_cores: int
    gradient_differences: dict[str, float] | None
    reference: Reference | None
    environment: dict[str, str]


Message = tuple[str, Any]
"""What a rank sends: ("step", (number, loss)), ("result", what the job returns) or ("error", (type, text))."""
STEP, RESULT, ERROR = "step", "result", "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsSpec:
    """Several plans of one model, on equally many devices, that train in turn: a step each, then the next round.

    What drifts on the machine then meets all of them alike. They share the model's weights, so that their losses say
    nothing.
    """

    runs: tuple[RunSpec, ...]

    @property
    def folder(self) -> Path:
        """One for all."""
        return self.runs[0].folder

    @property
    def timeout_s(self) -> float:
        """For all runs together."""
        return self.runs[0].timeout_s

    @property
    def loader(self) -> ProgramLoader:
        """The model's."""
        return self.runs[0].loader

    @property
    def num_ranks(self) -> int:
        """One process per device of the plans."""
        return self.runs[0].num_ranks

    def name(self, rank: int) -> str:
        """As in the first plan."""
        return self.runs[0].name(rank)

    def work(self, seat: Seat) -> tuple[RankResult, ...]:
        """Train in turn; the results plan by plan. Imports torch."""
        from planner.runtime.training import train_in_turn

        return train_in_turn(self, seat)
