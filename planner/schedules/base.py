"""The protocol of schedules: in which order every worker runs its actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.registry import Registry
from planner.timeline import Action, ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """What a schedule needs to know.

    `dealt[s]` is the number of replicas among which whole microbatches are dealt in turn at stage s: 1 where the
    replicas split every microbatch and so act as one worker. `forward_only` is inference.
    """

    num_stages: int
    num_microbatches: int
    dealt: tuple[int, ...]
    forward_only: bool = False

    def microbatches(self, stage: int, replica: int) -> range:
        """The microbatches that this replica of the stage runs."""
        return range(replica, self.num_microbatches, self.dealt[stage])


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One sequence of actions: of a replica of a stage (0 where replicas split), or of a rank with several stages."""

    stages: tuple[int, ...]
    replica: int
    actions: tuple[Action, ...]


class Schedule(Protocol):
    """One schedule. `name` is how requests and plans call it."""

    name: str

    def check(self, shape: PipelineShape, options: dict[str, int]) -> None:
        """InputError when the schedule is not legal for this shape or these options."""

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """Every worker's actions, in the order in which it runs them."""

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """The most microbatches (of the worker's own) whose activations one worker of `stage` holds at once."""


SCHEDULES: Registry[Schedule] = Registry("schedule", "planner.schedules")


def one_worker_per_replica(shape: PipelineShape, order: _Order) -> tuple[Worker, ...]:
    """Workers of schedules that give every stage its own devices; `order(stage, microbatches)` lists the actions."""
    return tuple(
        Worker(stages=(stage,), replica=replica, actions=tuple(order(stage, shape.microbatches(stage, replica))))
        for stage in range(shape.num_stages)
        for replica in range(shape.dealt[stage])
    )


class _Order(Protocol):
    def __call__(self, stage: int, microbatches: Sequence[int], /) -> Sequence[Action]: ...


def forwards(stage: int, microbatches: Sequence[int]) -> list[Action]:
    """Forward actions in the given order."""
    return [Action(stage, ActionKind.FORWARD, m) for m in microbatches]


def backwards(stage: int, microbatches: Sequence[int]) -> list[Action]:
    """Backward actions in the given order."""
    return [Action(stage, ActionKind.BACKWARD, m) for m in microbatches]
