"""Plans: where the model is cut, which devices run what, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG
from planner.workload import Recomputation, ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A set of layers and the device groups that run it.

    `replicas` holds one tuple of device ids per replica; each group has `tensor * context` devices. `expert` is the
    degree over which expert weights are spread, across the replicas' devices. `zero` is the ZeRO stage of the
    data-parallel group that the replicas form.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    layers: tuple[str, ...]
    replicas: tuple[tuple[str, ...], ...]
    tensor: int = 1
    context: int = 1
    expert: int = 1
    recomputation: Recomputation = Recomputation.NONE
    zero: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An executable plan. `microbatch_size * num_microbatches` is the global batch size.

    Stages are in pipeline order. Several stages may name the same devices (virtual stages of interleaved
    schedules); the schedule decides whether that is legal.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    stages: tuple[Stage, ...]
    schedule: str
    microbatch_size: int
    num_microbatches: int
    schedule_options: dict[str, int] = field(default_factory=dict)
    replica_mode: ReplicaMode = ReplicaMode.SPLIT
    problem_fingerprint: str = ""
