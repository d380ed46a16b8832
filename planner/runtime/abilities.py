"""What can be run, and by which executor. Torch's schedules where they can express the plan, our own where not."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from planner.errors import ExportError
from planner.grid import check_microbatches, grid_of
from planner.plan import Plan, Stage
from planner.runtime.layout import Layout, layout_of
from planner.schedules import SCHEDULES, PipelineShape
from planner.targets import ZERO_DEALT
from planner.workload import ReplicaMode

ENGINE = "the runtime"
TORCH_ENGINE = "torch's executor"
TORCH_SCHEDULES = ("1f1b", "gpipe")
"""Schedules that run as PyTorch's own classes."""


class ExecutorKind(StrEnum):
    """Who runs a step's actions: PyTorch's schedule classes, or the action lists of the plan's own schedule."""

    AUTO = "auto"
    TORCH = "torch"
    OWN = "own"


def check_runnable(plan: Plan, executor: ExecutorKind = ExecutorKind.AUTO) -> Layout:
    """The processes of a plan that `run` can run; ExportError naming the stage and the remedy otherwise."""
    dealt = plan.replica_mode is ReplicaMode.DEALT
    for number, stage in enumerate(plan.stages):
        for field, what, remedy in _misfits(stage, dealt=dealt):
            raise ExportError(
                f"stage {number} {what}, which {ENGINE} cannot do: {remedy}", pointer=f"/stages/{number}/{field}"
            )
    if plan.schedule not in SCHEDULES:
        known = ", ".join(sorted(SCHEDULES.names()))
        raise ExportError(f"{ENGINE} has no schedule {plan.schedule!r}: plan with {known}", pointer="/schedule")
    if executor is ExecutorKind.TORCH:
        _check_torch(plan)
    _check_devices(plan)
    layout = layout_of(plan)
    _check_samples(layout)
    SCHEDULES[plan.schedule].check(shape_of(layout, plan))
    return layout


def chosen(plan: Plan, executor: ExecutorKind) -> ExecutorKind:
    """TORCH or OWN for a plan that can be run."""
    if executor is not ExecutorKind.AUTO:
        return executor
    try:
        _check_torch(plan)
    except ExportError:
        return ExecutorKind.OWN
    return ExecutorKind.TORCH


def shape_of(layout: Layout, plan: Plan) -> PipelineShape:
    """What the plan's schedule has to know."""
    stages = range(layout.num_stages)
    return PipelineShape(
        num_stages=layout.num_stages,
        num_microbatches=layout.num_microbatches,
        dealt=tuple(layout.num_replicas(stage) if layout.dealt else 1 for stage in stages),
        rank_of=layout.group_of,
        options=plan.schedule_options,
        actions=plan.actions,
    )


def _misfits(stage: Stage, *, dealt: bool) -> Iterator[tuple[str, str, str]]:
    """Field, what is wrong, remedy."""
    for field, value in (("tensor", stage.tensor), ("context", stage.context), ("expert", stage.expert)):
        if value != 1:
            yield field, f"has {field} degree {value}", f"plan with {field} degree 1"
    if dealt and stage.zero not in ZERO_DEALT and divides(stage):
        what = f"divides gradients by ZeRO stage {stage.zero} among replicas that take whole microbatches in turn"
        yield "zero", what, f"plan with ZeRO stage {' or '.join(map(str, ZERO_DEALT))}, or replica mode split"
    if any(len(group) != 1 for group in stage.replicas):
        yield "replicas", "has a replica of several devices", "give each replica one device"


def divides(stage: Stage) -> bool:
    """Whether the replicas of a stage divide anything among themselves."""
    return stage.zero > 0 and len(stage.replicas) > 1


def _check_torch(plan: Plan) -> None:
    """ExportError for what PyTorch's schedules cannot express, or what we do under our own executor only."""
    for number, stage in enumerate(plan.stages):
        if divides(stage):
            raise ExportError(
                f"stage {number} shards by ZeRO stage {stage.zero}, which {TORCH_ENGINE} cannot do: plan with ZeRO "
                "stage 0, or run it with the executor own",
                pointer=f"/stages/{number}/zero",
            )
    if plan.schedule not in TORCH_SCHEDULES:
        known = " or ".join(TORCH_SCHEDULES)
        raise ExportError(
            f"{TORCH_ENGINE} has no schedule {plan.schedule!r}: plan with {known}, or run it with the executor own",
            pointer="/schedule",
        )
    grid_of(plan, TORCH_ENGINE)
    check_microbatches(plan, TORCH_ENGINE)


def _check_devices(plan: Plan) -> None:
    """ExportError for a device of two stages that do not have all their devices in common."""
    owner: dict[str, int] = {}
    for number, stage in enumerate(plan.stages):
        devices = [device for group in stage.replicas for device in group]
        for device in devices:
            first = owner.setdefault(device, number)
            if plan.stages[first].replicas != stage.replicas or devices.count(device) > 1:
                raise ExportError(
                    f"stage {number} runs on device {device!r}, which runs stage {first} too: {ENGINE} needs devices "
                    "of its own for every stage and replica, or the same replicas in both stages",
                    pointer=f"/stages/{number}/replicas",
                )


def _check_samples(layout: Layout) -> None:
    """ExportError for microbatches that the replicas of a stage cannot share evenly."""
    for stage in range(layout.num_stages):
        degree = layout.num_replicas(stage)
        if not layout.dealt and layout.microbatch_size % degree:
            raise ExportError(
                f"stage {stage} splits microbatches of {layout.microbatch_size} samples among {degree} replicas: "
                f"{ENGINE} needs a multiple of {degree}; choose another microbatch size",
                pointer="/microbatch_size",
            )
