"""What bounds the time of a plan: the critical path by kinds of work, and the sentence that says it."""

from __future__ import annotations

from collections import defaultdict

from planner.costs.model import CostModel
from planner.explanations.critical_path import Step, critical_path
from planner.plan import Plan
from planner.problem import Problem
from planner.result import Explanation, PathShare

PIVOT, BUBBLE, TRANSFER, ALL_REDUCE, OPTIMIZER = "pivot", "bubble", "transfer", "all_reduce", "optimizer"

WORDS = {
    PIVOT: "compute of the pivot stage",
    BUBBLE: "filling and draining the pipeline",
    TRANSFER: "transfers between stages",
    ALL_REDUCE: "all-reduces of gradients",
    OPTIMIZER: "the optimizer step",
}


def explained_time(problem: Problem, plan: Plan, costs: CostModel | None = None) -> Explanation:
    """The shares of the critical path, without what-ifs.

    The pivot stage is the one that computes longest on the path; while other stages compute there, it waits: bubble.
    """
    steps = critical_path(problem, plan, costs)
    pivot = _pivot(steps)
    seconds: dict[str, float] = defaultdict(float)
    for step in steps:
        seconds[_kind(step, pivot)] += step.seconds
    total = sum(seconds.values())
    ranked = sorted(((k, s) for k, s in seconds.items() if s > 0), key=lambda item: -item[1])
    path = tuple(PathShare(kind=k, seconds=s, share=s / total) for k, s in ranked)
    bottleneck = path[0].kind if path else PIVOT
    return Explanation(
        bottleneck=bottleneck, pivot_stage=pivot, message=_message(path, pivot, len(plan.stages)), path=path
    )


def _pivot(steps: list[Step]) -> int:
    compute: dict[int, float] = defaultdict(float)
    for step in steps:
        if step.category == "compute":
            compute[step.stage] += step.seconds
    return max(compute, key=lambda stage: (compute[stage], -stage), default=0)


def _kind(step: Step, pivot: int) -> str:
    if step.category == "compute":
        return PIVOT if step.stage == pivot else BUBBLE
    return step.category


def _message(path: tuple[PathShare, ...], pivot: int, stages: int) -> str:
    if not path:
        return "the plan takes no time"
    parts = [f"{_words(each.kind, pivot)} {100 * each.share:.1f} %" for each in path]
    return f"of the iteration's critical path ({stages} stages): " + ", ".join(parts)


def _words(kind: str, pivot: int) -> str:
    return f"{WORDS[kind]} {pivot}" if kind == PIVOT else WORDS[kind]
