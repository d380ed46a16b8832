"""Schedules: generators of action lists, one file each."""

from planner.schedules.base import SCHEDULES, Order, Pass, PipelineShape, Schedule, Worker
from planner.schedules.live import ONE, Kept, held_per_stage, peak_live
from planner.schedules.placement import Placement, rank_at

__all__ = [
    "ONE",
    "SCHEDULES",
    "Kept",
    "Order",
    "Pass",
    "PipelineShape",
    "Placement",
    "Schedule",
    "Worker",
    "held_per_stage",
    "peak_live",
    "rank_at",
]
