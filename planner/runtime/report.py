"""What a run tells: losses, times, memory per stage, and how far it is from the unpartitioned model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG
from planner.timeline import Timeline

CLEAN_RUN_QUEUE_SHARE = 0.025
"""An iteration is clean when no rank waited for a core for more than this share of it (disturbed ones: 15-55 %)..."""
CLEAN_CPU_DEVIATION = 0.025
"""... and no rank's CPU time is this far from its median: the work is the same, so that somebody else shared the
caches, the memory or, unseen, the core of a virtual machine."""
MEMORY_METHOD = "allocator peak of one iteration (torch.profiler) plus parameters, optimizer state and receive buffers"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMeasurement:
    """What one stage took, as the largest of its replicas.

    `forward_s` (with the loss, on the last stage) and `backward_s` are thread CPU seconds per microbatch, `optimizer_s`
    and `busy_s` thread CPU seconds per iteration, `all_reduce_s` wall seconds per iteration, waiting for the other
    ranks included; each is a median over the measured iterations. CPU seconds do not count waiting, so other processes
    disturb them little. `passes_s` has the stage's thread CPU seconds per microbatch by kind of pass: F, B, I, W and
    `loss`. `process_s` are CPU seconds per iteration of all threads of the process, those of transfers included.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    devices: tuple[str, ...]
    forward_s: float
    backward_s: float
    all_reduce_s: float
    optimizer_s: float
    busy_s: float
    peak_memory_bytes: int
    process_s: float = 0.0
    passes_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How quiet the machine was: per measured iteration, the largest share of it that a rank waited for a core.

    Empty where the system does not tell. `cpu_deviations` are the largest relative distances of a rank's CPU time from
    its median. `num_clean` counts the iterations below both limits. `pinned` says whether every rank had a core to
    itself.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    run_queue_shares: tuple[float, ...]
    num_clean: int
    pinned: bool
    cpu_deviations: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A finished run.

    `losses` has one mean loss per step; `iteration_times_s` one wall time per step after the `num_warm_up` first (the
    slowest rank's). `iteration_time_s` is the median of the clean ones, of all where none was clean. The differences
    to the unpartitioned model are those of the first step, None when not checked; `gradient_differences` holds the
    largest absolute difference per parameter, `gradient_scale` the largest absolute gradient of the reference.
    `precision` is the dtype of the weights where the run was given one. `timeline` is the last measured iteration.
    `reference_s` are CPU seconds of a fixed piece of work, the median over steps and ranks, in runs that take turns.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    steps: int
    num_warm_up: int
    losses: tuple[float, ...]
    iteration_time_s: float
    iteration_time_min_s: float
    iteration_time_max_s: float
    iteration_times_s: tuple[float, ...]
    stages: tuple[StageMeasurement, ...]
    noise: Noise
    loss_relative_difference: float | None = None
    gradient_max_difference: float | None = None
    gradient_differences: dict[str, float] = field(default_factory=dict)
    gradient_scale: float | None = None
    precision: str = ""
    memory_method: str = MEMORY_METHOD
    environment: dict[str, str] = field(default_factory=dict)
    timeline: Timeline | None = None
    reference_s: float | None = None
