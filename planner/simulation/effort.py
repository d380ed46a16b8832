"""How long the simulation of a plan will take: known from its passes before it is begun."""

from __future__ import annotations

from planner.plan import Plan
from planner.workload import Communication

ACTIONS_PER_S = {Communication.BLOCKING: 50_000, Communication.OVERLAPPED: 200_000}
"""Passes, with their transfers, in a second on a busy machine: by events, and by recurrence. Measured: 131,072 passes
and 130,560 blocking transfers take 2.3 CPU seconds."""


def num_actions(plan: Plan) -> int:
    """Forward and backward passes of one iteration."""
    return 2 * len(plan.stages) * plan.num_microbatches


def seconds_to_simulate(plan: Plan, communication: Communication) -> float:
    """What `estimate_priced` takes for the plan, about."""
    return num_actions(plan) / ACTIONS_PER_S[communication]
