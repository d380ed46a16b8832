"""A planning result on one screen: the stages, what they take, how good that is, and what lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from api.terminal.comparison_view import comparison_rows, comparison_table
from api.terminal.explanation_view import REMEDY_COLUMNS, attained_words, explanation_rows, remedy_row
from api.terminal.grids import pairs, table
from api.terminal.stage_tables import memory_table, stage_table, time_table
from api.terminal.units import memory, percent, seconds
from planner.options import Objective
from planner.plan import Plan
from planner.problem import Problem
from planner.result import Certificate, Infeasibility, PlanResult, RunnerUp, SearchReport, Status
from planner.timeline import Estimate
from planner.workload import ReplicaMode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PROVEN_GAP = 1e-9
MAX_RUNNERS_UP = 3
RUNNER_UP_COLUMNS = (
    ("stages", True),
    ("microbatch", True),
    ("schedule", False),
    ("simulated", True),
    ("objective", True),
    ("why it lost", False),
)


def show_result(result: PlanResult, problem: Problem, console: Console) -> None:
    """Print the result: tables and summary, or why there is no plan."""
    for part in _parts(result, problem):
        console.print(part)


def show_estimate(plan: Plan, estimate: Estimate, problem: Problem, console: Console) -> None:
    """Print a plan with its price."""
    for part in _tables(plan, estimate):
        console.print(part)
    console.print(pairs(_estimate_rows(plan, estimate, problem)))


def _parts(result: PlanResult, problem: Problem) -> Iterator[RenderableType]:
    report = result.report
    if result.plan is None or result.estimate is None:
        yield pairs(_failure_rows(report))
    else:
        yield from _tables(result.plan, result.estimate)
        yield pairs([*_estimate_rows(result.plan, result.estimate, problem), *_search_rows(report)])
    if result.explanation is not None:
        yield ""
        yield pairs(explanation_rows(result.explanation))
    if result.report.infeasibility is not None and result.report.infeasibility.remedies:
        yield ""
        yield table("What helps", REMEDY_COLUMNS, map(remedy_row, result.report.infeasibility.remedies))
    if result.baseline is not None:
        yield ""
        yield comparison_table(result, result.baseline)
        yield pairs(comparison_rows(result, result.baseline))
    if result.runners_up:
        most = len(result.runners_up) if report.objective == Objective.PARETO else MAX_RUNNERS_UP
        shown = result.runners_up[:most]
        yield ""
        yield table("Runners-up", RUNNER_UP_COLUMNS, map(_runner_up_row, shown))


def _tables(plan: Plan, estimate: Estimate) -> Iterator[RenderableType]:
    yield stage_table(plan, estimate)
    yield time_table(estimate)
    yield memory_table(estimate)


def _estimate_rows(plan: Plan, estimate: Estimate, problem: Problem) -> Iterator[tuple[str, str]]:
    yield "iteration time", f"{seconds(estimate.iteration_time_s)} (simulated)"
    yield "throughput", _throughput(estimate, problem)
    yield "bubble", f"{percent(estimate.bubble_fraction)} of the device time that the plan uses"
    yield "batch", _batch(plan)
    yield "schedule", plan.schedule
    yield "devices", f"{estimate.num_devices_used} used, {estimate.num_devices_idle} idle"
    limits = [stage.memory.limit_bytes for stage in estimate.stages]
    yield "peak memory", f"{memory(estimate.peak_memory_bytes)} per device (smallest limit {memory(min(limits))})"


def _throughput(estimate: Estimate, problem: Problem) -> str:
    samples = estimate.throughput_samples_per_s
    length = problem.workload.sequence_length
    tokens = f" ({samples * length:,.0f} tokens/s at sequence length {length})" if length else ""
    return f"{samples:,.2f} samples/s{tokens}"


def _batch(plan: Plan) -> str:
    total = plan.microbatch_size * plan.num_microbatches
    text = f"{total} = {plan.num_microbatches} microbatches of {plan.microbatch_size}"
    if all(len(stage.replicas) == 1 for stage in plan.stages):
        return text
    split = plan.replica_mode is ReplicaMode.SPLIT
    return f"{text}, {'each split over the replicas' if split else 'dealt to the replicas in turn'}"


def _search_rows(report: SearchReport) -> Iterator[tuple[str, str]]:
    if report.attained is not None:
        yield "attained", attained_words(report.attained)
    if report.objective_s is not None:
        yield "objective", f"{objective_value(report, report.objective_s)} in the search model {report.search_model!r}"
    yield "found by", _found_by(report)
    for certificate in report.certificates:
        yield "certificate", certificate_words(certificate, report)
    for note in report.notes:
        yield "note", note


def _found_by(report: SearchReport) -> str:
    solver = f" with {report.solver}" if report.solver else ""
    return f"{report.optimizer}{solver} in {seconds(report.runtime_s)}, seed {report.seed}; status {report.status}"


def objective_value(report: SearchReport, value: float) -> str:
    """A value of the objective: seconds per iteration, or per sample where throughput is sought."""
    per_sample = report.objective == Objective.THROUGHPUT
    return f"{seconds(value)} per {'sample' if per_sample else 'iteration'}"


def certificate_words(certificate: Certificate, report: SearchReport) -> str:
    """What is proven about the plan, as a sentence."""
    simulated = certificate.quantity == "iteration_time_s"
    what = "the simulated time" if simulated else f"the objective in the search model {certificate.search_model!r}"
    bound = seconds(certificate.bound_s) if simulated else objective_value(report, certificate.bound_s)
    over = f"{certificate.method}, over {certificate.scope}"
    if certificate.gap <= PROVEN_GAP:
        return f"{what} is proven optimal: no plan is below {bound} ({over})"
    return f"{what} is at most {percent(certificate.gap)} above the best: no plan is below {bound} ({over})"


def _failure_rows(report: SearchReport) -> Iterator[tuple[str, str]]:
    words = {
        Status.INFEASIBLE: "infeasible: no plan exists within the given limits",
        Status.LIMIT: "no plan was found before the limit; none is proven impossible",
    }
    yield "result", words.get(report.status, f"no plan ({report.status})")
    if report.infeasibility is not None:
        yield from _infeasibility_rows(report.infeasibility)
    yield "searched", f"{report.optimizer}, {seconds(report.runtime_s)}, seed {report.seed}"
    for note in report.notes:
        yield "note", note


def _infeasibility_rows(reason: Infeasibility) -> Iterator[tuple[str, str]]:
    yield "constraint", reason.constraint
    yield "why", reason.message
    if reason.shortfall_bytes:
        yield "shortfall", f"{memory(reason.shortfall_bytes)} per device"
    yield "remedy", reason.remedy


def _runner_up_row(other: RunnerUp) -> tuple[str, ...]:
    plan = other.plan
    return (
        str(len(plan.stages)),
        f"{plan.num_microbatches} x {plan.microbatch_size}",
        plan.schedule,
        seconds(other.iteration_time_s),
        seconds(other.objective_s),
        other.reason,
    )
