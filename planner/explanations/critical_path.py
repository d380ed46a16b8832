"""The critical path of a simulated iteration: the chain of tasks, without a gap, that ends with the last one.

From the last task backwards: what a task waited for is the task before it in its worker's order, something it needs, or
whoever occupied one of its resources, that ended just when it started. The seconds between the two starts are the
waited-for task's share, so that the shares sum up to the iteration time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from planner.costs.model import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.engine import Run, Task, simulate
from planner.simulation.program import build

ROUNDING = 1e-9
"""Times that differ by less, relatively, are the same instant."""


@dataclass(frozen=True, slots=True)
class Step:
    """One task of the path: its category, its stage where it computes (else -1), and its seconds on the path."""

    category: str
    stage: int
    seconds: float


def critical_path(problem: Problem, plan: Plan, costs: CostModel | None = None) -> list[Step]:
    """The path from the first task to the last. O(T log T) like the simulation of T tasks."""
    program = build(problem, (costs or CostModel(problem)).price(plan))
    run = simulate(program.tasks, program.num_resources)
    return list(reversed(list(_backwards(program.tasks, run))))


def _backwards(tasks: list[Task], run: Run) -> Iterator[Step]:
    ends = sorted(_ends(tasks, run))
    number: int | None = max(range(len(tasks)), key=lambda n: run.end_s[n], default=None)
    until, seen, tolerance = run.makespan_s, set[int](), ROUNDING * run.makespan_s
    while number is not None:
        seen.add(number)
        start = run.start_s[number]
        yield _step(tasks[number], until - start)
        just = ends[bisect_left(ends, (start - tolerance, -1)) : bisect_right(ends, (start + tolerance, len(tasks)))]
        number, until = _awaited(tasks, [n for _, n in just if n not in seen], number), start


def _ends(tasks: list[Task], run: Run) -> Iterator[tuple[float, int]]:
    """(seconds, task) at which it lets others go on: its end, and that of its occupation."""
    for number, task in enumerate(tasks):
        for end in {run.end_s[number], _freed(task, run.start_s[number])}:
            yield end, number


def _freed(task: Task, start: float) -> float:
    occupied = task.seconds if task.occupied_s is None else min(task.occupied_s, task.seconds)
    return start + occupied


def _awaited(tasks: list[Task], ended: list[int], number: int) -> int | None:
    """Of the tasks that ended when this one started: one of its worker, one that it needs, or one in its way.

    Several may have ended together; staying with the worker keeps the path on the stage that is busy without a gap.
    """
    task, mine = tasks[number], set(tasks[number].resources)
    needed = [n for n in ended if n in task.needs]
    same = [n for n in ended if task.queue is not None and tasks[n].queue == task.queue]
    blocking = [n for n in ended if mine & set(tasks[n].resources)]
    return max(same or needed or blocking, default=None)


def _step(task: Task, seconds: float) -> Step:
    """The label of a pass begins with the number of its stage."""
    digits = len(task.label) - len(task.label.lstrip("0123456789"))
    stage = int(task.label[:digits]) if task.category == "compute" and digits else -1
    return Step(task.category, stage, seconds)
