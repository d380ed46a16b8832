"""Schedules: generators of action lists, one file each."""

from planner.schedules.base import SCHEDULES, Order, Pass, PipelineShape, Schedule, Worker, is_legal, shape_on
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
    "is_legal",
    "peak_live",
    "rank_at",
    "shape_on",
]
