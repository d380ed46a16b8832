"""What bounds the time of a plan: every moment of the iteration by what it is spent on, and the sentence that says it.

The pivot is the worker that computes longest. While it computes, the moment is the pivot's. While it waits, the moment
is that of the task on the critical path: a pass of another stage (bubble), a transfer, a collective, the optimizer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from planner.costs.model import CostModel
from planner.explanations.critical_path import Step, critical_path
from planner.plan import Plan
from planner.problem import Problem
from planner.result import Explanation, PathShare
from planner.simulation.engine import Run, Task, simulate
from planner.simulation.program import build

PIVOT, BUBBLE, TRANSFER, ALL_REDUCE, OPTIMIZER = "pivot", "bubble", "transfer", "all_reduce", "optimizer"
COMPUTE = "compute"

WORDS = {
    PIVOT: "passes of the pivot stage",
    BUBBLE: "filling and draining the pipeline",
    TRANSFER: "transfers between stages",
    ALL_REDUCE: "all-reduces of gradients",
    OPTIMIZER: "the optimizer step",
}

Interval = tuple[float, float]


def explained_time(problem: Problem, plan: Plan, costs: CostModel | None = None) -> Explanation:
    """The shares of the iteration, without what-ifs."""
    program = build(problem, (costs or CostModel(problem)).price(plan))
    run = simulate(program.tasks, program.num_resources)
    worker = _pivot(program.tasks)
    pivot = program.workers[worker].stages[0]
    seconds: dict[str, float] = defaultdict(float)
    for kind, spent in _spent(critical_path(program.tasks, run), _passes(program.tasks, run, worker)):
        seconds[kind] += spent
    total = sum(seconds.values())
    ranked = sorted(((k, s) for k, s in seconds.items() if s > 0), key=lambda item: -item[1])
    path = tuple(PathShare(kind=k, seconds=s, share=s / total) for k, s in ranked)
    bottleneck = path[0].kind if path else PIVOT
    return Explanation(
        bottleneck=bottleneck, pivot_stage=pivot, message=_message(path, pivot, len(plan.stages)), path=path
    )


def _pivot(tasks: Sequence[Task]) -> int:
    """The worker that computes longest, the first of equals."""
    busy: dict[int, float] = defaultdict(float)
    for task in tasks:
        if task.queue is not None:
            busy[task.queue] += task.seconds
    return max(busy, key=lambda worker: (busy[worker], -worker), default=0)


def _passes(tasks: Sequence[Task], run: Run, worker: int) -> list[Interval]:
    """When the worker computes, in order of time."""
    return sorted((run.start_s[n], run.end_s[n]) for n, task in enumerate(tasks) if task.queue == worker)


def _spent(steps: Sequence[Step], passes: Sequence[Interval]) -> Iterator[tuple[str, float]]:
    """(kind, seconds) of every step, the part of it in which the pivot computes as pivot. O(steps + passes)."""
    first = 0
    for step in steps:
        while first < len(passes) and passes[first][1] <= step.start_s:
            first += 1
        within, at = 0.0, first
        while at < len(passes) and passes[at][0] < step.end_s:
            within += min(step.end_s, passes[at][1]) - max(step.start_s, passes[at][0])
            at += 1
        yield PIVOT, within
        yield BUBBLE if step.category == COMPUTE else step.category, max(0.0, step.end_s - step.start_s - within)


def _message(path: tuple[PathShare, ...], pivot: int, stages: int) -> str:
    if not path:
        return "the plan takes no time"
    parts = [f"{_words(each.kind, pivot)} {100 * each.share:.1f} %" for each in path]
    return f"of the iteration ({stages} stages): " + ", ".join(parts)


def _words(kind: str, pivot: int) -> str:
    return f"{WORDS[kind]} {pivot}" if kind == PIVOT else WORDS[kind]
