"""How long the simulation of a plan will take: known from its passes and transfers before it is begun."""

from __future__ import annotations

from planner.plan import Plan
from planner.problem import Problem
from planner.workload import Communication

TASKS_PER_S = {Communication.BLOCKING: 100_000, Communication.OVERLAPPED: 400_000}
"""Passes and transfers in a second on a busy machine: by events, and by recurrence. Measured on a quiet one: 131,072
passes and 130,560 blocking transfers take 2.3 CPU seconds; 404,480 and 849,920 that often wait for each other, 12."""


def num_tasks(problem: Problem, plan: Plan) -> int:
    """Passes and transfers of one iteration, also the backward passes of stages that run none. O(layers + edges)."""
    ways = 1 if problem.training is None else 2
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.layers}
    ends = {(stage_of[edge.source], stage_of[edge.target]) for edge in problem.graph.edges}
    return ways * plan.num_microbatches * (len(plan.stages) + sum(a != b for a, b in ends))


def seconds_to_simulate(problem: Problem, plan: Plan) -> float:
    """What `estimate_priced` takes for the plan, about."""
    return num_tasks(problem, plan) / TASKS_PER_S[problem.workload.communication]
