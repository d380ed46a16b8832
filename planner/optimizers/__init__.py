"""Optimizers: interchangeable ways to search for a plan, one file each."""

from planner.optimizers.base import OPTIMIZERS, Candidate, Optimizer, Outcome, SearchContext

__all__ = ["OPTIMIZERS", "Candidate", "Optimizer", "Outcome", "SearchContext"]
