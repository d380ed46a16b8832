"""What an iteration of a plan takes: the estimate that people read, and the timeline behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.costs.model import CostModel, PricedPlan
from planner.costs.objective import period_s
from planner.options import SearchModel
from planner.plan import Plan
from planner.problem import Problem
from planner.schedules import ONE, Worker, peak_live
from planner.simulation.engine import Run, simulate
from planner.simulation.flows import pass_seconds
from planner.simulation.makespan import makespan_s
from planner.simulation.program import Program, build, running_workers
from planner.timeline import Estimate, Lane, Span, StageEstimate, Timeline
from planner.workload import Communication


def estimate_plan(problem: Problem, plan: Plan, costs: CostModel | None = None) -> Estimate:
    """The estimate of one iteration, without its timeline."""
    return estimate_priced(problem, (costs or CostModel(problem)).price(plan))


def estimate_priced(problem: Problem, priced: PricedPlan) -> Estimate:
    """The estimate of a plan whose prices are known."""
    workers = running_workers(priced)
    return _estimate(problem, priced, workers, makespan_s(problem, priced, workers))


def simulate_plan(problem: Problem, plan: Plan, costs: CostModel | None = None) -> tuple[Timeline, Estimate]:
    """Run one iteration of the plan in the event simulator. O(T log T) for T actions and transfers."""
    return simulate_priced(problem, (costs or CostModel(problem)).price(plan))


def simulate_priced(problem: Problem, priced: PricedPlan) -> tuple[Timeline, Estimate]:
    """The same for a plan whose prices are known."""
    program = build(problem, priced)
    run = simulate(program.tasks, program.num_resources)
    estimate = _estimate(problem, priced, program.workers, run.makespan_s)
    return _timeline(priced, program, run, estimate.bubble_fraction), estimate


def _timeline(priced: PricedPlan, program: Program, run: Run, bubble_fraction: float) -> Timeline:
    spans = _spans(program, run)
    lanes = tuple(
        _lane(priced, worker, spans[number], run.peak_bytes.get(number, 0))
        for number, worker in enumerate(program.workers)
    )
    return Timeline(lanes=lanes, makespan_s=run.makespan_s, bubble_fraction=bubble_fraction)


def _spans(program: Program, run: Run) -> list[list[Span]]:
    """Per worker, what it did in order of time; overlapped transfers stand with the worker that sends."""
    spans: list[list[Span]] = [[] for _ in program.workers]
    for number, task in enumerate(program.tasks):
        span = Span(label=str(task.label), category=task.category, start_s=run.start_s[number], end_s=run.end_s[number])
        owners = program.owners(task)
        if not owners and task.needs:
            owners = [q for q in [program.tasks[task.needs[0]].queue] if q is not None]
        for owner in owners:
            spans[owner].append(span)
    return [sorted(line, key=lambda s: (s.start_s, s.end_s)) for line in spans]


def _lane(priced: PricedPlan, worker: Worker, spans: list[Span], peak_bytes: int) -> Lane:
    back = () if priced.shape.forward_only else (s for s in worker.stages if priced.stages[s].parts.runs_backward)
    return Lane(
        devices=_devices(priced, worker),
        spans=tuple(spans),
        busy_s=_busy_s(priced, worker),
        peak_memory_bytes=_peak_memory_bytes(priced, worker, peak_bytes),
        peak_in_flight=peak_live(worker.order, dict.fromkeys(back, ONE)),
    )


def _devices(priced: PricedPlan, worker: Worker) -> tuple[str, ...]:
    """The worker's own replica where microbatches are dealt, else all."""
    first = priced.stages[worker.stages[0]]
    groups = first.stage.replicas if first.dealt == 1 else first.stage.replicas[worker.replica : worker.replica + 1]
    return tuple(device for group in groups for device in group)


def _busy_s(priced: PricedPlan, worker: Worker) -> float:
    """Seconds of all passes."""
    return sum(count * pass_seconds(priced.stages[p.stage], p.kind) for p, count in Counter(worker.order).items())


def _peak_memory_bytes(priced: PricedPlan, worker: Worker, kept_bytes: int) -> int:
    """With what its passes keep at most: that of the simulation instead of the price's."""
    first = priced.stages[worker.stages[0]]
    return first.memory.total_bytes - first.kept_peak_bytes + kept_bytes


def _kept_bytes(priced: PricedPlan, worker: Worker) -> int:
    """The most that the worker's passes keep at once. Its order says it: no seconds are needed."""
    return peak_live(worker.order, {stage: priced.stages[stage].kept for stage in worker.stages})


def _bubble_fraction(priced: PricedPlan, workers: Sequence[Worker], whole_s: float) -> float:
    """The idle share of all devices in use."""
    devices = [len(_devices(priced, worker)) for worker in workers]
    busy = sum(count * _busy_s(priced, worker) for count, worker in zip(devices, workers, strict=True))
    return 1.0 - busy / (whole_s * sum(devices)) if whole_s else 0.0


def _estimate(problem: Problem, priced: PricedPlan, workers: Sequence[Worker], whole_s: float) -> Estimate:
    plan = priced.plan
    used = {device for stage in plan.stages for group in stage.replicas for device in group}
    blocking = problem.workload.communication is Communication.BLOCKING
    model = SearchModel.BLOCKING if blocking else SearchModel.OVERLAPPED
    samples = plan.microbatch_size * plan.num_microbatches
    return Estimate(
        iteration_time_s=whole_s,
        throughput_samples_per_s=samples / whole_s if whole_s else 0.0,
        bottleneck_s=period_s(problem, priced, model),
        bubble_fraction=_bubble_fraction(priced, workers, whole_s),
        peak_memory_bytes=max(_peak_memory_bytes(priced, w, _kept_bytes(priced, w)) for w in workers),
        stages=tuple(_stage_estimate(priced, number) for number in range(len(plan.stages))),
        num_devices_used=len(used),
        num_devices_idle=len(problem.cluster.devices) - len(used),
    )


def _stage_estimate(priced: PricedPlan, number: int) -> StageEstimate:
    stage = priced.stages[number]
    received = [t for t in priced.transfers if t.target == number]
    sent = [t for t in priced.transfers if t.source == number]
    return StageEstimate(
        forward_s=float(stage.seconds.forward_s),
        backward_s=float(stage.seconds.backward_s),
        receive_s=sum(t.forward_s() for t in received) + sum(t.backward_s() for t in sent),
        all_reduce_s=float(stage.seconds.all_reduce_s + stage.tied_s),
        optimizer_s=float(stage.seconds.optimizer_s),
        in_flight=stage.in_flight,
        memory=stage.memory,
    )
