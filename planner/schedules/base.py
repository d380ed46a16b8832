"""The protocol of schedules: in which order every worker runs its passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from planner.errors import InputError
from planner.registry import Registry
from planner.schedules.placement import Placement, rank_at
from planner.timeline import Action, ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """What a schedule needs to know.

    `dealt[s]` is the number of replicas among which whole microbatches are dealt in turn at stage s: 1 where the
    replicas split every microbatch and so act as one worker. `forward_only` is inference. `rank_of[s]` is the rank
    (the devices) that runs stage s; empty means that every stage has a rank of its own. `options` are the schedule's,
    `actions` the printed actions per rank of the schedule `custom`.
    """

    num_stages: int
    num_microbatches: int
    dealt: tuple[int, ...]
    forward_only: bool = False
    rank_of: tuple[int, ...] = ()
    options: dict[str, int] = field(default_factory=dict)
    actions: tuple[tuple[str, ...], ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank of every stage."""
        return self.rank_of or tuple(range(self.num_stages))

    @property
    def pipeline_size(self) -> int:
        """The number of ranks."""
        return max(self.ranks, default=-1) + 1

    def stages_on(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank runs, in pipeline order."""
        return tuple(stage for stage, at in enumerate(self.ranks) if at == rank)

    def microbatches(self, stage: int, replica: int) -> range:
        """The microbatches that this replica of the stage runs."""
        return range(replica, self.num_microbatches, self.dealt[stage])


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """A kind of action of one stage. The n-th time that it stands in an order it is over `microbatches[n]`.

    A stage's whole backward passes (B) and input gradients (I) count together.
    """

    stage: int
    kind: ActionKind
    microbatches: Sequence[int]


Order = list[Pass]
"""What a worker runs, one pass after the other. Few objects, many times each, so that long orders are cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One sequence of passes: of a replica of a stage (0 where replicas split), or of a rank with several stages."""

    stages: tuple[int, ...]
    replica: int
    order: Order

    @property
    def actions(self) -> tuple[Action, ...]:
        """The passes with their microbatches. O(actions)."""
        return tuple(Action(p.stage, p.kind, microbatch) for p, microbatch in self.numbered)

    @property
    def numbered(self) -> Iterator[tuple[Pass, int]]:
        """Every pass of the order and its microbatch."""
        counts: dict[tuple[int, str], int] = {}
        for p in self.order:
            counter = (p.stage, _COUNTER[p.kind])
            at = counts.get(counter, 0)
            counts[counter] = at + 1
            yield p, p.microbatches[at]


class Schedule(Protocol):
    """One schedule. `name` is how requests and plans call it.

    `placement` says which rank runs which stage, `splits_backward` whether backward passes are split into I and W.
    """

    name: str
    placement: Placement
    splits_backward: bool

    def check(self, shape: PipelineShape) -> None:
        """InputError when the schedule is not legal for this shape, its placement or its options."""

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """Every worker's order, for a legal shape. Workers of several stages are in order of their ranks."""

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """The most microbatches (of the worker's own) whose activations one worker holds at once for `stage`."""


SCHEDULES: Registry[Schedule] = Registry("schedule", "planner.schedules")


def shape_on(placement: Placement, ranks: int, num_stages: int, num_microbatches: int) -> PipelineShape:
    """Training in so many stages on so many ranks; nothing is dealt."""
    return PipelineShape(
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        dealt=(1,) * num_stages,
        rank_of=tuple(rank_at(placement, stage, ranks) for stage in range(num_stages)),
    )


def is_legal(schedule: Schedule, shape: PipelineShape) -> bool:
    """Whether the schedule has this shape."""
    try:
        schedule.check(shape)
    except InputError:
        return False
    return True


def one_worker_per_replica(shape: PipelineShape, order: _StageOrder) -> tuple[Worker, ...]:
    """Workers of schedules that give every stage its own devices; `order(stage, microbatches)` lists the passes."""
    return tuple(
        Worker(stages=(stage,), replica=replica, order=order(stage, shape.microbatches(stage, replica)))
        for stage in range(shape.num_stages)
        for replica in range(shape.dealt[stage])
    )


def one_worker_per_rank(shape: PipelineShape, order: _RankOrder) -> tuple[Worker, ...]:
    """Workers of schedules that may give a rank several stages; inference runs the forwards of `order(rank)`."""
    return tuple(
        Worker(stages=shape.stages_on(rank), replica=0, order=_forwards_if(shape.forward_only, order(rank)))
        for rank in range(shape.pipeline_size)
    )


class _StageOrder(Protocol):
    def __call__(self, stage: int, microbatches: Sequence[int], /) -> Order: ...


class _RankOrder(Protocol):
    def __call__(self, rank: int, /) -> Order: ...


def passes(stage: int, microbatches: Sequence[int], kinds: str = "FB") -> tuple[Pass, ...]:
    """One pass of the stage per letter of `kinds`."""
    return tuple(Pass(stage, ActionKind(kind), microbatches) for kind in kinds)


def alternate(*orders: Order) -> Order:
    """One of each in turn, the orders being equally long."""
    merged = orders[0] * len(orders)
    for number, order in enumerate(orders):
        merged[number :: len(orders)] = order
    return merged


def _forwards_if(forward_only: bool, order: Order) -> Order:
    return [p for p in order if p.kind is ActionKind.FORWARD] if forward_only else order


_COUNTER = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.INPUT_GRADIENT: "backward",
    ActionKind.WEIGHT_GRADIENT: "weight",
}
