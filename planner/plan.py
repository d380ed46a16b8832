"""Plans: where the model is cut, which devices run what, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG
from planner.workload import Recomputation, ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A set of layers and the device groups that run it.

    `replicas` holds one tuple of device ids per replica; each group has `tensor * context` devices: `context` tensor-
    parallel groups, one after the other. `expert` is the degree over which expert weights are spread: across
    consecutive ones of all these groups, so that it divides `context * replicas`. `zero` is the ZeRO stage of the
    data-parallel group that they form, `reshard` whether ZeRO 3 gathers its weights for every pass.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    layers: tuple[str, ...]
    replicas: tuple[tuple[str, ...], ...]
    tensor: int = 1
    context: int = 1
    expert: int = 1
    recomputation: Recomputation = Recomputation.NONE
    zero: int = 0
    reshard: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An executable plan. `microbatch_size * num_microbatches` is the global batch size.

    Stages are in pipeline order. Several stages may name the same replicas (virtual stages): they are on one rank, and
    ranks count in the order in which the stages first name them. The schedule decides whether that is legal.
    `actions` are for the schedule `custom` only: per rank, its actions in order, such as `2F0` (stage, kind,
    microbatch; kinds F, B, I and W).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    stages: tuple[Stage, ...]
    schedule: str
    microbatch_size: int
    num_microbatches: int
    schedule_options: dict[str, int] = field(default_factory=dict)
    replica_mode: ReplicaMode = ReplicaMode.SPLIT
    problem_fingerprint: str = ""
    actions: tuple[tuple[str, ...], ...] = ()

    @property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of every stage: stages with the same replicas share one."""
        ranks: dict[tuple[tuple[str, ...], ...], int] = {}
        return tuple(ranks.setdefault(stage.replicas, len(ranks)) for stage in self.stages)
