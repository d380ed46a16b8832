"""A plan's stages: what they run, what that takes, and what memory a device of each needs. Fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterable
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
    ("in\nflight", True),
)
TIME_COLUMNS = (
    ("#", True),
    ("forward", True),
    ("backward", True),
    ("receive", True),
    ("all-reduce", True),
    ("optimizer", True),
)
MEMORY_COLUMNS = (
    ("#", True),
    ("weights", True),
    ("gradients", True),
    ("optimizer", True),
    ("activations", True),
    ("other", True),
    ("total", True),
    ("limit", True),
    ("used", True),
)


def stage_table(plan: Plan, estimate: Estimate) -> Table:
    """Layers and devices of every stage, and how many microbatches it holds at most."""
    stages = zip(plan.stages, estimate.stages, strict=True)
    return table("Stages", STAGE_COLUMNS, _numbered(_stage_row(*both) for both in stages))


def time_table(estimate: Estimate) -> Table:
    """What every stage takes."""
    title = "Times (ms per microbatch; the last two per iteration)"
    return table(title, TIME_COLUMNS, _numbered(map(_time_row, estimate.stages)))


def memory_table(estimate: Estimate) -> Table:
    """What one device of each stage needs, by purpose."""
    title = "Memory per device (GiB; other: workspace and transfer buffers)"
    return table(title, MEMORY_COLUMNS, _numbered(_memory_row(stage.memory) for stage in estimate.stages))


def replicas(stage: Stage) -> str:
    """The replication degree and the devices of each replica: `4 x 8`."""
    return f"{len(stage.replicas)} x {stage.tensor * stage.context}"


def _numbered(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(str(number), *row) for number, row in enumerate(rows)]


def _stage_row(stage: Stage, priced: StageEstimate) -> tuple[str, ...]:
    devices = [device for group in stage.replicas for device in group]
    return layer_range(stage.layers), device_ranges(devices), replicas(stage), str(priced.in_flight)


def _time_row(stage: StageEstimate) -> tuple[str, ...]:
    times = (stage.forward_s, stage.backward_s, stage.receive_s, stage.all_reduce_s, stage.optimizer_s)
    return tuple(map(milliseconds, times))


def _memory_row(memory: MemoryParts) -> tuple[str, ...]:
    parts = (
        memory.weights_bytes,
        memory.gradients_bytes,
        memory.optimizer_bytes,
        memory.activations_bytes,
        memory.workspace_bytes + memory.buffers_bytes,
        memory.total_bytes,
        memory.limit_bytes,
    )
    used = percent(memory.total_bytes / memory.limit_bytes) if memory.limit_bytes else "-"
    return (*map(gibibytes, parts), used)
