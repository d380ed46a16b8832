"""Predicted beside measured: what a run of a plan showed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from api.terminal.grids import pairs, table
from api.terminal.stage_tables import stage_table
from api.terminal.units import MEBIBYTE, digits, memory, milliseconds, seconds
from planner.plan import Plan
from planner.runtime.replay import ReplayReport
from planner.runtime.report import RunReport, StageMeasurement
from planner.timeline import Estimate, StageEstimate, Timeline

if TYPE_CHECKING:
    from rich.console import Console

MAX_LOSS_DIFFERENCE = 1e-5
"""Relative; the sums of microbatch losses are taken in another order than the unpartitioned model's."""
MAX_GRADIENT_DIFFERENCE = 1e-5
MAX_ROUNDED_DIFFERENCE = 2.0**-6
"""In bfloat16, of the loss and of the largest gradient: four times the spacing of its numbers below 1."""
ROUNDED = "bfloat16"
COLUMNS = (
    ("#", True),
    ("forward ms\npredicted", True),
    ("\nmeasured", True),
    ("backward ms\npredicted", True),
    ("\nmeasured", True),
    ("memory MiB\npredicted", True),
    ("\nmeasured", True),
)


def show_run(plan: Plan, estimate: Estimate, report: RunReport, console: Console) -> None:
    """Print stages and iteration with both figures, and the check against the unpartitioned model."""
    rows = [(str(number), *_row(*both)) for number, both in enumerate(zip(estimate.stages, report.stages, strict=True))]
    console.print(stage_table(plan, estimate))
    console.print(table("Predicted beside measured (times per microbatch, memory per device)", COLUMNS, rows))
    console.print(pairs([*_time_rows(estimate, report), *_check_rows(report)]))


def show_replay(simulated: Timeline, report: ReplayReport, console: Console) -> None:
    """Print what one rank did alone beside what was predicted for its device."""
    lane = next(lane for lane in simulated.lanes if set(report.devices) <= set(lane.devices))
    rows = [
        ("busy ms per iteration", milliseconds(lane.busy_s), milliseconds(report.busy_s)),
        (
            "memory MiB",
            digits(lane.peak_memory_bytes / MEBIBYTE),
            digits(report.peak_memory_bytes / MEBIBYTE),
        ),
    ]
    columns = (("", False), ("predicted", True), ("measured", True))
    console.print(table(f"Rank {report.rank} ({'+'.join(report.devices)}) alone, transfers stubbed", columns, rows))


def is_equal(report: RunReport) -> bool:
    """Whether a checked run computed what the unpartitioned model computes (True for one that was not checked)."""
    loss, gradient = report.loss_relative_difference, report.gradient_max_difference
    if loss is None or gradient is None:
        return True
    loss_limit, gradient_limit = _limits(report)
    return loss <= loss_limit and gradient <= gradient_limit


def _limits(report: RunReport) -> tuple[float, float]:
    """Of the loss (relative) and of the gradients (absolute)."""
    if report.precision != ROUNDED:
        return MAX_LOSS_DIFFERENCE, MAX_GRADIENT_DIFFERENCE
    return MAX_ROUNDED_DIFFERENCE, MAX_ROUNDED_DIFFERENCE * (report.gradient_scale or 0.0)


def _row(predicted: StageEstimate, measured: StageMeasurement) -> tuple[str, ...]:
    return (
        milliseconds(predicted.forward_s),
        milliseconds(measured.forward_s),
        milliseconds(predicted.backward_s),
        milliseconds(measured.backward_s),
        digits(predicted.memory.total_bytes / MEBIBYTE),
        digits(measured.peak_memory_bytes / MEBIBYTE),
    )


def _time_rows(estimate: Estimate, report: RunReport) -> Iterator[tuple[str, str]]:
    predicted, measured = estimate.iteration_time_s, report.iteration_time_s
    error = predicted / measured - 1.0 if measured else 0.0
    yield "iteration predicted", seconds(predicted)
    spread = f"{seconds(report.iteration_time_min_s)} to {seconds(report.iteration_time_max_s)}"
    yield "iteration measured", f"{seconds(measured)} (median; {spread}); the prediction is {100 * error:+.1f} % off"
    yield "peak memory predicted", memory(estimate.peak_memory_bytes)
    yield "peak memory measured", memory(max(stage.peak_memory_bytes for stage in report.stages))
    yield "quiet iterations", _quiet(report)
    yield "loss", f"{report.losses[0]:.4f} in the first step, {report.losses[-1]:.4f} in the last of {report.steps}"


def _quiet(report: RunReport) -> str:
    text = f"{report.noise.num_clean} of {len(report.iteration_times_s)} without waiting for a core"
    if report.noise.num_clean or not report.noise.run_queue_shares:
        return text
    return f"{text}: other work shared the cores, so the measured iteration holds waiting (stage times do not)"


def _check_rows(report: RunReport) -> Iterator[tuple[str, str]]:
    loss, gradient = report.loss_relative_difference, report.gradient_max_difference
    if loss is None or gradient is None:
        return
    loss_limit, gradient_limit = _limits(report)
    yield "check: loss", _verdict(loss, loss_limit, "relative difference to the unpartitioned model")
    yield "check: gradients", _verdict(gradient, gradient_limit, "largest absolute difference")


def _verdict(value: float, limit: float, what: str) -> str:
    return f"{'PASS' if value <= limit else 'FAIL'}  {what} {value:.2e} (limit {limit:.0e})"
