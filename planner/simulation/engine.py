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
    """One thing that happens. `str(label)` is its name: a text, or what makes one when somebody asks.

    `seconds` is how long until what waits for it may go on, `occupied_s` how long its `resources` are taken
    (None: as long; a transfer's latency, say, occupies nothing). `queue` is the worker in whose order it stands.
    `needs` are numbers of tasks. `acquire` bytes are held from its start, `release` bytes are given back at its end,
    both on the memory account `account`.
    """

    label: object
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
    """One run. `missing` counts the needs of a task that have not ended, `loose` are ready tasks outside queues in the
    order in which they became ready, with that number; `parked` those that wait for a resource, by the resource."""

    def __init__(self, tasks: Sequence[Task], num_resources: int, dispatch: Dispatch) -> None:
        self.tasks, self.dispatch = tasks, dispatch
        self.missing, self.after = _waiting(tasks)
        self.ready = [count == 0 for count in self.missing]
        self.free = [True] * num_resources
        self.queues = _queues(tasks)
        self.head = dict.fromkeys(self.queues, 0)
        self.queues_on = _queues_on(tasks, num_resources)
        self.awake = set(self.queues)
        self.loose = list(enumerate(n for n, task in enumerate(tasks) if task.queue is None and self.ready[n]))
        self.num_loose = len(self.loose)
        self.parked: list[list[tuple[int, int]]] = [[] for _ in range(num_resources)]
        self.events: list[tuple[float, int, bool]] = []
        self.start = [-1.0] * len(tasks)
        self.end = [-1.0] * len(tasks)
        self.held: dict[int, int] = {}
        self.peak: dict[int, int] = {}
        self.now = 0.0

    def run(self) -> Run:
        events = self.events
        self._start_what_can()
        while events:
            self.now = events[0][0]
            while events and events[0][0] == self.now:
                _, number, is_end = heapq.heappop(events)
                if self.end[number] < 0:
                    self._free(number)
                if is_end:
                    self._finish(number)
            self._start_what_can()
        stuck = [task.label for task, end in zip(self.tasks, self.end, strict=True) if end < 0]
        if stuck:
            raise InternalError(f"the simulation is stuck: {len(stuck)} tasks never start, the first is '{stuck[0]}'")
        return Run(start_s=self.start, end_s=self.end, peak_bytes=self.peak)

    def _start_what_can(self) -> None:
        if self.loose:
            loose, self.loose = sorted(self.loose), []
            for entry in loose:
                taken = self._try(entry[1])
                if taken is not None:
                    self.parked[taken].append(entry)
        awake, self.awake = sorted(self.awake), set()
        for queue in awake:
            self._advance(queue)

    def _advance(self, queue: int) -> None:
        """Start the queue's next task if it may; zero-length tasks let the next one follow at once."""
        waiting, at = self.queues[queue], self.head[queue]
        if at >= len(waiting):
            return
        number = waiting[at] if self.dispatch is fixed_order else self.dispatch(waiting[at:], self.ready)
        if number is None or not self.ready[number] or self._try(number) is not None:
            return
        if self.dispatch is not fixed_order:
            waiting.remove(number)
            waiting.insert(at, number)
        self.head[queue] = at + 1

    def _try(self, number: int) -> int | None:
        """Start the task; or a resource of it that is taken."""
        task, free = self.tasks[number], self.free
        for resource in task.resources:
            if not free[resource]:
                return resource
        for resource in task.resources:
            free[resource] = False
        self.start[number] = self.now
        if task.occupied_s is not None and task.occupied_s < task.seconds:
            heapq.heappush(self.events, (self.now + task.occupied_s, number, False))
        heapq.heappush(self.events, (self.now + task.seconds, number, True))
        if task.acquire:
            held = self.held[task.account] = self.held.get(task.account, 0) + task.acquire
            if held > self.peak.get(task.account, 0):
                self.peak[task.account] = held
        return None

    def _free(self, number: int) -> None:
        """Give the task's resources back, once: at the end of its occupation. Whoever waits for them looks again."""
        self.end[number] = self.now
        for resource in self.tasks[number].resources:
            self.free[resource] = True
            self.awake.update(self.queues_on[resource])
            if self.parked[resource]:
                self.loose += self.parked[resource]
                self.parked[resource] = []

    def _finish(self, number: int) -> None:
        task, missing = self.tasks[number], self.missing
        self.end[number] = self.now
        if task.release:
            self.held[task.account] -= task.release
        for follower in self.after[number]:
            missing[follower] -= 1
            if not missing[follower]:
                self.ready[follower] = True
                queue = self.tasks[follower].queue
                if queue is None:
                    self.loose.append((self.num_loose, follower))
                    self.num_loose += 1
                else:
                    self.awake.add(queue)


def _waiting(tasks: Sequence[Task]) -> tuple[list[int], list[list[int]]]:
    """Per task, how many it needs, and which need it."""
    missing, after = [0] * len(tasks), [list[int]() for _ in tasks]
    for number, task in enumerate(tasks):
        needs = task.needs if len(task.needs) < 2 else set(task.needs)
        missing[number] = len(needs)
        for need in needs:
            after[need].append(number)
    return missing, after


def _queues(tasks: Sequence[Task]) -> dict[int, list[int]]:
    """The tasks of every queue in order."""
    queues: dict[int, list[int]] = {}
    for number, task in enumerate(tasks):
        if task.queue is not None:
            queues.setdefault(task.queue, []).append(number)
    return queues


def _queues_on(tasks: Sequence[Task], num_resources: int) -> list[set[int]]:
    """Per resource, the queues with tasks that take it."""
    found = [set[int]() for _ in range(num_resources)]
    for task in tasks:
        if task.queue is not None:
            for resource in task.resources:
                found[resource].add(task.queue)
    return found
