"""Schedules: generators of action lists, one file each."""

from planner.schedules.base import SCHEDULES, PipelineShape, Schedule, Worker

__all__ = ["SCHEDULES", "PipelineShape", "Schedule", "Worker"]
