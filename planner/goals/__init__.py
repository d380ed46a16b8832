"""Goals: objectives that are reached by asking for several searches. One file per objective, found by the registry."""

from planner.goals.base import GOALS, Answer, Goal, Planner

__all__ = ["GOALS", "Answer", "Goal", "Planner"]
