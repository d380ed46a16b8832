"""Runs a plan on torch.distributed and measures it. Importing this package does not import torch; the ranks do."""

from planner.runtime.report import Noise, RunReport, StageMeasurement
from planner.runtime.running import check_runnable, run

__all__ = ["Noise", "RunReport", "StageMeasurement", "check_runnable", "run"]
