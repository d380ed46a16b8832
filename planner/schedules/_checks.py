"""Legality checks that several schedules share."""

from __future__ import annotations

from planner.errors import InputError
from planner.schedules.base import PipelineShape
from planner.schedules.placement import Placement, rank_at


def check_plain(name: str, shape: PipelineShape, placement: Placement) -> None:
    """What most schedules ask for: no options, no actions, split replicas, and the stages at their places."""
    refuse_options(name, shape)
    refuse_actions(name, shape)
    refuse_dealt(name, shape)
    placed(name, shape, placement)


def refuse_options(name: str, shape: PipelineShape) -> None:
    """For schedules without options."""
    if shape.options:
        raise InputError(f"schedule {name!r} takes no options, got {', '.join(sorted(shape.options))}: remove them")


def refuse_actions(name: str, shape: PipelineShape) -> None:
    """For all schedules that make their own action lists."""
    if shape.actions:
        raise InputError(
            f"schedule {name!r} makes its own actions, but the plan lists some: remove them, or use the schedule "
            "'custom'",
            pointer="/plan/actions",
        )


def enough_for_replicas(name: str, shape: PipelineShape) -> None:
    """Every dealt replica needs at least one microbatch."""
    for stage, degree in enumerate(shape.dealt):
        if degree > shape.num_microbatches:
            raise InputError(
                f"schedule {name!r}: stage {stage} of {shape.num_stages} deals {shape.num_microbatches} microbatches "
                f"to {degree} replicas: use at least {degree} microbatches or fewer replicas"
            )


def refuse_dealt(name: str, shape: PipelineShape) -> None:
    """For schedules whose replicas split every microbatch."""
    for stage, degree in enumerate(shape.dealt):
        if degree > 1:
            raise InputError(
                f"schedule {name!r}: stage {stage} deals whole microbatches to {degree} replicas: use the replica "
                "mode 'split', or the schedules 1f1b or gpipe",
                pointer="/plan/replica_mode",
            )


def placed(name: str, shape: PipelineShape, placement: Placement) -> None:
    """Every rank runs equally many stages, and those that the placement gives it."""
    size = shape.pipeline_size
    if placement is Placement.LINE and size < shape.num_stages:
        raise InputError(
            f"schedule {name!r} runs one stage per rank, but {shape.num_stages} stages share {size} ranks: give every "
            "stage devices of its own, or use a schedule with virtual stages (interleaved_1f1b, looped_bfs, zb_v, "
            "dualpipe_v)"
        )
    _equal_shares(name, shape, placement)
    for stage, rank in enumerate(shape.ranks):
        wanted = rank_at(placement, stage, size)
        if rank != wanted:
            raise InputError(
                f"schedule {name!r} runs stage {stage} of {shape.num_stages} on rank {wanted} of {size}, but it names "
                f"the devices of rank {rank}: give it those of stage {wanted}",
                pointer=f"/plan/stages/{stage}/replicas",
            )


def _equal_shares(name: str, shape: PipelineShape, placement: Placement) -> None:
    size, stages = shape.pipeline_size, shape.num_stages
    if placement is Placement.V and stages != 2 * size:
        raise InputError(
            f"schedule {name!r} needs 2 virtual stages per rank, but pipeline size {size} with "
            f"{shape.num_microbatches} microbatches has {stages} stages: use {2 * size} stages"
        )
    if stages % size:
        raise InputError(
            f"schedule {name!r} needs the same number of virtual stages on every rank, but pipeline size {size} with "
            f"{shape.num_microbatches} microbatches has {stages} stages: use {nearest_multiples(stages, size)} stages"
        )


def sizes(shape: PipelineShape) -> str:
    """The figures that every message about legality names."""
    size = shape.pipeline_size
    return (
        f"pipeline size {size}, {shape.num_microbatches} microbatches and {shape.num_stages // size} virtual stages "
        "per rank"
    )


def nearest_multiples(number: int, of: int) -> str:
    """The multiples of `of` next to `number`, as words; only the upper one where the lower is 0."""
    below = number // of * of
    return f"{below} or {below + of}" if below else f"{below + of}"
