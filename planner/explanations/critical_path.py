"""The critical path of a simulated iteration: the chain of tasks, without a gap, that ends with the last one.

From the last task backwards: what a task waited for is the task before it in its worker's order, something it needs, or
whoever occupied one of its resources, that ended just when it started. The seconds between the two starts are the
waited-for task's share, so that the shares sum up to the iteration time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.simulation.engine import Run, Task

ROUNDING = 1e-9
"""Times that differ by less, relatively, are the same instant."""


@dataclass(frozen=True, slots=True)
class Step:
    """One task of the path: its category and the part of the iteration that it stands for."""

    category: str
    start_s: float
    end_s: float


def critical_path(tasks: Sequence[Task], run: Run) -> list[Step]:
    """The path from the first task to the last, without gaps. O(T log T) for T tasks, like their simulation."""
    return list(reversed(list(_backwards(tasks, run))))


def _backwards(tasks: Sequence[Task], run: Run) -> Iterator[Step]:
    ends = sorted(_ends(tasks, run))
    number: int | None = max(range(len(tasks)), key=lambda n: run.end_s[n], default=None)
    until, seen, tolerance = run.makespan_s, set[int](), ROUNDING * run.makespan_s
    while number is not None:
        seen.add(number)
        start = run.start_s[number]
        yield Step(tasks[number].category, start, until)
        just = ends[bisect_left(ends, (start - tolerance, -1)) : bisect_right(ends, (start + tolerance, len(tasks)))]
        number, until = _awaited(tasks, [n for _, n in just if n not in seen], number), start


def _ends(tasks: Sequence[Task], run: Run) -> Iterator[tuple[float, int]]:
    """(seconds, task) at which it lets others go on: its end, and that of its occupation."""
    for number, task in enumerate(tasks):
        for end in {run.end_s[number], _freed(task, run.start_s[number])}:
            yield end, number


def _freed(task: Task, start: float) -> float:
    occupied = task.seconds if task.occupied_s is None else min(task.occupied_s, task.seconds)
    return start + occupied


def _awaited(tasks: Sequence[Task], ended: list[int], number: int) -> int | None:
    """Of the tasks that ended when this one started: one of its worker, one that it needs, or one in its way.

    Several may have ended together; staying with the worker keeps the path on the stage that is busy without a gap.
    """
    task, mine = tasks[number], set(tasks[number].resources)
    needed = [n for n in ended if n in task.needs]
    same = [n for n in ended if task.queue is not None and tasks[n].queue == task.queue]
    blocking = [n for n in ended if mine & set(tasks[n].resources)]
    return max(same or needed or blocking, default=None)
