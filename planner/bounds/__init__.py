"""Certified lower bounds, one file each."""

from planner.bounds.base import BOUNDS, Bound, BoundQuery

__all__ = ["BOUNDS", "Bound", "BoundQuery"]
