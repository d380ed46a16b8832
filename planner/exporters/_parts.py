"""What the exporters for transformer engines share: every stage as its share of the model's blocks."""

from __future__ import annotations

from dataclasses import dataclass

from planner.blocks import Blocks, blocks_of
from planner.exporters.base import ExportContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One stage: the numbers of its blocks; whether it starts the model (embedding) and ends it (norm, head, loss)."""

    blocks: range
    starts: bool
    ends: bool


def parts_of(context: ExportContext) -> list[Part]:
    """A part per stage, for a plan that was checked against a target with blocks."""
    found, position = blocks_of(context.problem.index), 0
    parts = []
    for stage in context.plan.stages:
        end = position + len(stage.layers)
        parts.append(_part(found, position, end))
        position = end
    return parts


def pipeline_size(context: ExportContext) -> int:
    """The number of pipeline ranks."""
    return max(context.plan.rank_of) + 1


def group_size(context: ExportContext) -> int:
    """Devices of one replica of a stage."""
    stage = context.plan.stages[0]
    return stage.tensor * stage.context


def num_processes(context: ExportContext) -> int:
    """Devices of the plan: one process each."""
    return pipeline_size(context) * len(context.plan.stages[0].replicas) * group_size(context)


def _part(found: Blocks, start: int, end: int) -> Part:
    """The stage of the layers at positions `start` to `end`."""
    first, count = len(found.before), len(found.blocks)
    blocks = range(min(max(start - first, 0), count), min(max(end - first, 0), count))
    total = first + count + len(found.after)
    ends = end == total if not found.after else start <= total - len(found.after) < end
    return Part(blocks=blocks, starts=start == 0, ends=ends)
