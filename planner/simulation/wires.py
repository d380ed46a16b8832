"""Who sends what to whom, over which links: what the engine's program and the recurrence have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.costs.model import PricedPlan, PricedTransfer
from planner.problem import Problem
from planner.schedules import Worker


@dataclass(slots=True, kw_only=True)
class Wires:
    """Workers by stage and microbatch, and a number from `first` on for every link direction in use.

    A direction of a link that is not shared counts once per pair of devices.
    """

    problem: Problem
    priced: PricedPlan
    workers: Sequence[Worker]
    first: int = 0
    _worker_of: dict[tuple[int, int], int] = field(init=False)
    _number_of: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._worker_of = {(s, w.replica): n for n, w in enumerate(self.workers) for s in w.stages}

    @property
    def num_resources(self) -> int:
        """One more than the last number that was given out."""
        return self.first + len(self._number_of)

    def worker(self, stage: int, microbatch: int) -> int:
        """The worker that runs this microbatch of the stage."""
        return self._worker_of[stage, microbatch % self.priced.shape.dealt[stage]]

    def links(self, made: int, read: int, microbatch: int) -> tuple[int, ...]:
        """The link directions between the first devices of the two stages' replicas that run this microbatch."""
        source, target = self._device(made, microbatch), self._device(read, microbatch)
        route = self.problem.network.route(source, target)
        if route is None:
            return ()
        links = self.problem.cluster.links
        return tuple(
            self._number((number, forward) if links[number].shared else (number, forward, source, target))
            for number, forward in route.hops
        )

    def has_gradient(self, transfer: PricedTransfer) -> bool:
        """Whether both ends run backward passes, so that the source waits for the target's."""
        ends = (transfer.source, transfer.target)
        return self.problem.training is not None and all(self.priced.stages[s].parts.runs_backward for s in ends)

    def _device(self, stage: int, microbatch: int) -> str:
        return self.priced.plan.stages[stage].replicas[microbatch % self.priced.shape.dealt[stage]][0]

    def _number(self, key: tuple[object, ...]) -> int:
        return self._number_of.setdefault(key, self.num_resources)
