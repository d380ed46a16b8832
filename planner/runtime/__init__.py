"""Runs a plan on torch.distributed and measures it. Importing this package does not import torch; the ranks do."""

from planner.runtime.abilities import ExecutorKind, check_runnable
from planner.runtime.replay import ReplayReport, replay
from planner.runtime.report import Noise, RunReport, StageMeasurement
from planner.runtime.running import run, run_in_turn

__all__ = [
    "ExecutorKind",
    "Noise",
    "ReplayReport",
    "RunReport",
    "StageMeasurement",
    "check_runnable",
    "replay",
    "run",
    "run_in_turn",
]
