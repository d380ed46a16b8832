"""What runs when: actions, spans, timelines, and the estimate that people read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG


class ActionKind(StrEnum):
    """What a stage does in one action. Letters as in PyTorch's schedule tables."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one stage over one microbatch; prints as `2F0`."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that occupied a lane from `start_s` to `end_s`.

    `label` is an action (`2F0`), a transfer (`send 2F0 -> 3`), `all-reduce`, `tied all-reduce` or `optimizer`;
    `category` is one of compute, transfer, all_reduce, optimizer.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    label: str
    category: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Devices that run the same actions in lockstep (a tensor-parallel group, the replicas of a split stage).

    `peak_in_flight` counts a microbatch once for every stage of theirs that holds its activations.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    devices: tuple[str, ...]
    spans: tuple[Span, ...]
    busy_s: float
    peak_memory_bytes: int
    peak_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A simulated (or measured) iteration. `bubble_fraction` is the idle share of the lanes, weighted by devices."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    lanes: tuple[Lane, ...]
    makespan_s: float
    bubble_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes that one device of a stage needs for all stages that it runs, by purpose; `limit_bytes` is what it has."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    workspace_bytes: int
    buffers_bytes: int
    total_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """What one stage costs: seconds per microbatch (per iteration for all-reduce and optimizer), bytes per device.

    `memory` is the device's, where several stages run on it the same for all of them; `in_flight` is the stage's own.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    forward_s: float
    backward_s: float
    receive_s: float
    all_reduce_s: float
    optimizer_s: float
    in_flight: int
    memory: MemoryParts
    weight_versions: int = 1
    staleness: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The simulated price of a plan: what one iteration takes and what every stage needs."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    iteration_time_s: float
    throughput_samples_per_s: float
    bottleneck_s: float
    bubble_fraction: float
    peak_memory_bytes: int
    stages: tuple[StageEstimate, ...]
    num_devices_used: int
    num_devices_idle: int
