"""A plan beside the one that is run today, stage by stage. Fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from api.terminal.grids import table
from api.terminal.stage_tables import replicas
from api.terminal.units import gibibytes, memory, milliseconds, percent, seconds
from planner.plan import Plan
from planner.result import Baseline, PlanResult
from planner.timeline import Estimate

if TYPE_CHECKING:
    from rich.table import Table

SIDE = (("layers", True), ("replicas\nx devices", True), ("passes\nms", True), ("memory\nGiB", True))
NOTHING = ("-",) * len(SIDE)


def comparison_table(result: PlanResult, baseline: Baseline) -> Table:
    """One row per stage: this plan to the left, the other one to the right."""
    ours = _sides(result.plan, result.estimate) if result.plan and result.estimate else []
    rows = zip_longest(ours, _sides(baseline.plan, baseline.estimate), fillvalue=NOTHING)
    title = f"This plan (left) and {baseline.name} (right)"
    return table(title, (("#", True), *SIDE, *SIDE), [(str(n), *left, *right) for n, (left, right) in enumerate(rows)])


def comparison_rows(result: PlanResult, baseline: Baseline) -> Iterator[tuple[str, str]]:
    """What the whole plans take."""
    theirs, ours = baseline.estimate, result.estimate
    yield "theirs", _whole(baseline.plan, theirs)
    if ours is not None and result.plan is not None:
        yield "ours", _whole(result.plan, ours)
    if baseline.ratio is not None:
        yield "ratio", f"theirs takes {baseline.ratio:.3f} times as long"
    for fault in baseline.faults:
        yield "theirs cannot run", fault


def _whole(plan: Plan, estimate: Estimate) -> str:
    return (
        f"{seconds(estimate.iteration_time_s)}, bubble {percent(estimate.bubble_fraction)}, "
        f"{memory(estimate.peak_memory_bytes)} per device, {len(plan.stages)} stages, "
        f"{plan.num_microbatches} microbatches of {plan.microbatch_size}, {plan.schedule}"
    )


def _sides(plan: Plan, estimate: Estimate) -> list[tuple[str, ...]]:
    return [
        (
            str(len(stage.layers)),
            replicas(stage),
            milliseconds(priced.forward_s + priced.backward_s),
            gibibytes(priced.memory.total_bytes),
        )
        for stage, priced in zip(plan.stages, estimate.stages, strict=True)
    ]
