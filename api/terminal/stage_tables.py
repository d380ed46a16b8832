"""A plan's stages: what they run and take, and what memory a device of each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.terminal.grids import table
from api.terminal.names import device_ranges, layer_range
from api.terminal.units import gibibytes, milliseconds, percent
from planner.plan import Plan, Stage
from planner.timeline import Estimate, MemoryParts, StageEstimate

if TYPE_CHECKING:
    from rich.table import Table

STAGE_COLUMNS = (
    ("#", True),
    ("layers", False),
    ("devices", False),
    ("replicas\nx devices", True),
    ("forward\nms", True),
    ("backward\nms", True),
    ("receive\nms", True),
    ("all-reduce\nms", True),
    ("optimizer\nms", True),
    ("in\nflight", True),
)
MEMORY_COLUMNS = (
    ("#", True),
    ("weights", True),
    ("gradients", True),
    ("optimizer", True),
    ("activations", True),
    ("workspace", True),
    ("buffers", True),
    ("total", True),
    ("limit", True),
    ("used", True),
)


def stage_table(plan: Plan, estimate: Estimate) -> Table:
    """Layers, devices and seconds of every stage."""
    stages = zip(plan.stages, estimate.stages, strict=True)
    rows = [(str(n), *_stage_row(stage, priced)) for n, (stage, priced) in enumerate(stages)]
    return table("Stages (times per microbatch; all-reduce and optimizer per iteration)", STAGE_COLUMNS, rows)


def memory_table(estimate: Estimate) -> Table:
    """What one device of each stage needs, by purpose."""
    rows = [(str(n), *_memory_row(stage.memory)) for n, stage in enumerate(estimate.stages)]
    return table("Memory per device (GiB)", MEMORY_COLUMNS, rows)


def replicas(stage: Stage) -> str:
    """The replication degree and the devices of each replica: `4 x 8`."""
    return f"{len(stage.replicas)} x {stage.tensor * stage.context}"


def _stage_row(stage: Stage, priced: StageEstimate) -> tuple[str, ...]:
    devices = [device for group in stage.replicas for device in group]
    return (
        layer_range(stage.layers),
        device_ranges(devices),
        replicas(stage),
        milliseconds(priced.forward_s),
        milliseconds(priced.backward_s),
        milliseconds(priced.receive_s),
        milliseconds(priced.all_reduce_s),
        milliseconds(priced.optimizer_s),
        str(priced.in_flight),
    )


def _memory_row(memory: MemoryParts) -> tuple[str, ...]:
    parts = (
        memory.weights_bytes,
        memory.gradients_bytes,
        memory.optimizer_bytes,
        memory.activations_bytes,
        memory.workspace_bytes,
        memory.buffers_bytes,
        memory.total_bytes,
        memory.limit_bytes,
    )
    used = percent(memory.total_bytes / memory.limit_bytes) if memory.limit_bytes else "-"
    return (*map(gibibytes, parts), used)
