"""What would help most: the plan priced, or the problem planned again, with one thing better.

Links twice as wide, one more microbatch: the same plan is simulated again. Twice the memory, one more device or node:
a short search finds another plan. All within a small budget; what does not fit into it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.errors import PlannerError
from planner.explanations.searching import replanned
from planner.finalists import ROUNDING
from planner.optimizers.base import Clock
from planner.options import Objective, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.result import WhatIf
from planner.simulation.estimate import estimate_plan
from planner.timeline import Estimate
from planner.variations import grown, unit, with_bandwidth, with_cluster, with_memory
from planner.workload import Workload

BUDGET_S = 2.0
"""Of all what-ifs of one plan."""

MAX_ACTIONS = 50_000
"""Stages x microbatches above which no plan is simulated again."""

FACTOR = 2
"""How much wider the links, how much larger the memory."""

Trial = Callable[[], tuple[str, Estimate, bool] | None]
"""(change, estimate with it, whether it was planned again)."""


def what_ifs(problem: Problem, plan: Plan, estimate: Estimate, options: SearchOptions, limit_s: float) -> list[WhatIf]:
    """The largest gain first; none for plans too large to be simulated often."""
    if len(plan.stages) * plan.num_microbatches > MAX_ACTIONS:
        return []
    clock = Clock(min(BUDGET_S, limit_s))
    found = []
    for trial in _trials(problem, plan, options, clock):
        if clock.expired():
            break
        tried = trial()
        if tried is not None:
            found.append(_what_if(estimate, *tried))
    return sorted(found, key=lambda w: -w.gain)


def _what_if(before: Estimate, change: str, after: Estimate, planned: bool) -> WhatIf:
    """A search that found nothing better keeps the plan: its gain is 0."""
    rate, base = after.throughput_samples_per_s, before.throughput_samples_per_s
    gain = rate / base - 1.0 if base else 0.0
    gain = 0.0 if abs(gain) < ROUNDING else gain
    seconds = after.iteration_time_s
    if planned and gain < 0:
        gain, seconds = 0.0, before.iteration_time_s
    return WhatIf(change=change, iteration_time_s=seconds, gain=gain, replanned=planned)


def _trials(problem: Problem, plan: Plan, options: SearchOptions, clock: Clock) -> Iterator[Trial]:
    """Latency knows one microbatch only; a search for the time is no comparison for a plan that holds tokens."""
    if len(plan.stages) > 1 or any(len(stage.replicas) > 1 or stage.tensor > 1 for stage in plan.stages):
        yield lambda: _wider_links(problem, plan)
    if options.objective is not Objective.LATENCY:
        yield lambda: _one_more_microbatch(problem, plan)
    if options.objective is not Objective.MAX_KV_TOKENS:
        yield lambda: _more_memory(problem, options, clock)
        yield lambda: _more_devices(problem, options, clock)


def _wider_links(problem: Problem, plan: Plan) -> tuple[str, Estimate, bool] | None:
    faster = with_cluster(problem, with_bandwidth(problem.cluster, FACTOR))
    return _priced(f"links {FACTOR} times as wide", faster, plan)


def _one_more_microbatch(problem: Problem, plan: Plan) -> tuple[str, Estimate, bool] | None:
    count = plan.num_microbatches + 1
    more = problem.with_workload(_workload(problem.workload, plan.microbatch_size, count))
    return _priced(
        f"one more microbatch (global batch {count * plan.microbatch_size})",
        more,
        replace(plan, num_microbatches=count),
    )


def _workload(work: Workload, size: int, count: int) -> Workload:
    return replace(work, global_batch_size=size * count, microbatch_size=size, num_microbatches=count)


def _priced(change: str, problem: Problem, plan: Plan) -> tuple[str, Estimate, bool] | None:
    """The same plan; None where it has no price there (a schedule that does not allow the count)."""
    try:
        return change, estimate_plan(problem, replace(plan, problem_fingerprint="")), False
    except PlannerError:
        return None


def _more_memory(problem: Problem, options: SearchOptions, clock: Clock) -> tuple[str, Estimate, bool] | None:
    limits = {name: FACTOR * limit for name, limit in problem.memory_limits.items()}
    larger = with_cluster(problem, with_memory(problem.cluster, limits))
    return _planned(f"{FACTOR} times the memory per device", larger, options, clock)


def _more_devices(problem: Problem, options: SearchOptions, clock: Clock) -> tuple[str, Estimate, bool] | None:
    cluster = grown(problem.cluster, 1)
    if cluster is None:
        return None
    added = len(unit(problem.cluster))
    words = "one more device" if added == 1 else f"one more node of {added} devices"
    return _planned(words, with_cluster(problem, cluster), options, clock)


def _planned(change: str, problem: Problem, options: SearchOptions, clock: Clock) -> tuple[str, Estimate, bool] | None:
    found = replanned(problem, options, max(0.1, clock.left_s()))
    return None if found is None else (change, found.estimate, True)
