"""An event simulator of tasks on exclusive resources. It knows no schedule, no stage and no model by name.

A task starts when everything it needs has ended, its resources are free and, if it stands in a queue, it is the
queue's next. Tasks outside queues (transfers, collectives) go first, in the order in which they became ready. Which
of a queue's tasks is next is a `Dispatch`; the fixed order of a synchronous schedule is the default.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from planner.errors import InternalError


@dataclass(slots=True, kw_only=True)
class Task:
    """One thing that happens.

    `seconds` is how long until what waits for it may go on, `occupied_s` how long its `resources` are taken
    (None: as long; a transfer's latency, say, occupies nothing). `queue` is the worker in whose order it stands.
    `needs` are numbers of tasks. `acquire` bytes are held from its start, `release` bytes are given back at its end,
    both on the memory account `account`.
    """

    label: str
    category: str
    seconds: float
    resources: tuple[int, ...] = ()
    occupied_s: float | None = None
    queue: int | None = None
    needs: list[int] = field(default_factory=list)
    account: int = -1
    acquire: int = 0
    release: int = 0


class Dispatch(Protocol):
    """Which task of a queue may start: `waiting` are the queue's task numbers in order, `ready` tells of a task."""

    def __call__(self, waiting: Sequence[int], ready: Sequence[bool]) -> int | None: ...


def fixed_order(waiting: Sequence[int], ready: Sequence[bool]) -> int | None:
    """The first task of the queue, when it is ready."""
    return waiting[0] if ready[waiting[0]] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened: start and end per task, and the highest held bytes per memory account."""

    start_s: list[float]
    end_s: list[float]
    peak_bytes: dict[int, int]

    @property
    def makespan_s(self) -> float:
        """When the last task ended."""
        return max(self.end_s, default=0.0)


def simulate(tasks: Sequence[Task], num_resources: int, dispatch: Dispatch = fixed_order) -> Run:
    """Run all tasks. O(T log T) with fixed order; deterministic (ties by task number).

    Raises InternalError when nothing can go on although tasks are left (a schedule that waits for itself).
    """
    return _Engine(tasks, num_resources, dispatch).run()


class _Engine:
    def __init__(self, tasks: Sequence[Task], num_resources: int, dispatch: Dispatch) -> None:
        self.tasks, self.dispatch = tasks, dispatch
        self.missing = [len(set(task.needs)) for task in tasks]
        self.ready = [count == 0 for count in self.missing]
        self.after: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for need in set(task.needs):
                self.after[need].append(number)
        self.free = [True] * num_resources
        self.queues: dict[int, list[int]] = {}
        self.head: dict[int, int] = {}
        for number, task in enumerate(tasks):
            if task.queue is not None:
                self.queues.setdefault(task.queue, []).append(number)
        self.queues_on: dict[int, set[int]] = {}
        for queue, numbers in self.queues.items():
            for number in numbers:
                for resource in tasks[number].resources:
                    self.queues_on.setdefault(resource, set()).add(queue)
        self.awake = set(self.queues)
        self.loose = [n for n, task in enumerate(tasks) if task.queue is None and self.ready[n]]
        self.events: list[tuple[float, int, bool]] = []
        self.start = [-1.0] * len(tasks)
        self.end = [-1.0] * len(tasks)
        self.held: dict[int, int] = {}
        self.peak: dict[int, int] = {}
        self.now = 0.0

    def run(self) -> Run:
        self._start_what_can()
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, number, is_end = heapq.heappop(self.events)
                self._free(number)
                if is_end:
                    self._finish(number)
            self._start_what_can()
        stuck = [task.label for task, end in zip(self.tasks, self.end, strict=True) if end < 0]
        if stuck:
            raise InternalError(f"the simulation is stuck: {len(stuck)} tasks never start, the first is {stuck[0]!r}")
        return Run(start_s=self.start, end_s=self.end, peak_bytes=self.peak)

    def _start_what_can(self) -> None:
        self.loose = [n for n in self.loose if not self._try(n)]
        awake, self.awake = sorted(self.awake), set()
        for queue in awake:
            self._advance(queue)

    def _advance(self, queue: int) -> None:
        """Start the queue's next task if it may; zero-length tasks let the next one follow at once."""
        waiting = self.queues[queue]
        at = self.head.get(queue, 0)
        if at >= len(waiting):
            return
        number = waiting[at] if self.dispatch is fixed_order else self.dispatch(waiting[at:], self.ready)
        if number is None or not self.ready[number] or not self._try(number):
            return
        if self.dispatch is not fixed_order:
            waiting.remove(number)
            waiting.insert(at, number)
        self.head[queue] = at + 1

    def _try(self, number: int) -> bool:
        task = self.tasks[number]
        if not all(self.free[r] for r in task.resources):
            return False
        for resource in task.resources:
            self.free[resource] = False
        self.start[number] = self.now
        end = self.now + task.seconds
        if task.occupied_s is not None and task.occupied_s < task.seconds:
            heapq.heappush(self.events, (self.now + task.occupied_s, number, False))
        heapq.heappush(self.events, (end, number, True))
        if task.acquire:
            self.held[task.account] = self.held.get(task.account, 0) + task.acquire
            self.peak[task.account] = max(self.peak.get(task.account, 0), self.held[task.account])
        return True

    def _free(self, number: int) -> None:
        """Give the task's resources back, once: at the end of its occupation."""
        task = self.tasks[number]
        if self.end[number] < 0:
            self.end[number] = self.now
            for resource in task.resources:
                self.free[resource] = True
                self.awake |= self.queues_on.get(resource, set())

    def _finish(self, number: int) -> None:
        task = self.tasks[number]
        self.end[number] = self.now
        if task.release:
            self.held[task.account] -= task.release
        for follower in self.after[number]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self.ready[follower] = True
                queue = self.tasks[follower].queue
                if queue is None:
                    self.loose.append(follower)
                else:
                    self.awake.add(queue)
