"""Legality checks that several schedules share."""

from __future__ import annotations

from planner.errors import InputError
from planner.schedules.base import PipelineShape


def refuse_options(name: str, options: dict[str, int]) -> None:
    """For schedules without options."""
    if options:
        raise InputError(f"schedule {name!r} takes no options, got {', '.join(sorted(options))}: remove them")


def enough_for_replicas(name: str, shape: PipelineShape) -> None:
    """Every dealt replica needs at least one microbatch."""
    for stage, degree in enumerate(shape.dealt):
        if degree > shape.num_microbatches:
            raise InputError(
                f"schedule {name!r}: stage {stage} of {shape.num_stages} deals {shape.num_microbatches} microbatches "
                f"to {degree} replicas: use at least {degree} microbatches or fewer replicas"
            )
