"""Simulate a plan: its timeline, and the estimate that people read."""

from __future__ import annotations

from planner.costs.model import CostModel, PricedPlan
from planner.costs.objective import period_s
from planner.options import SearchModel
from planner.plan import Plan
from planner.problem import Problem
from planner.schedules import ONE, Worker, peak_live
from planner.simulation.engine import Run, simulate
from planner.simulation.program import Program, build
from planner.timeline import Estimate, Lane, Span, StageEstimate, Timeline
from planner.workload import Communication


def simulate_plan(problem: Problem, plan: Plan, costs: CostModel | None = None) -> tuple[Timeline, Estimate]:
    """Run one iteration of the plan in the event simulator. O(T log T) for T actions and transfers."""
    priced = (costs or CostModel(problem)).price(plan)
    program = build(problem, priced)
    run = simulate(program.tasks, program.num_resources)
    timeline = _timeline(priced, program, run)
    return timeline, _estimate(problem, priced, timeline)


def _timeline(priced: PricedPlan, program: Program, run: Run) -> Timeline:
    spans = _spans(program, run)
    lanes = tuple(
        _lane(priced, worker, spans[number], run.peak_bytes.get(number, 0))
        for number, worker in enumerate(program.workers)
    )
    weight = sum(len(lane.devices) for lane in lanes)
    busy = sum(len(lane.devices) * lane.busy_s for lane in lanes)
    whole = run.makespan_s * weight
    return Timeline(lanes=lanes, makespan_s=run.makespan_s, bubble_fraction=1.0 - busy / whole if whole else 0.0)


def _spans(program: Program, run: Run) -> list[list[Span]]:
    """Per worker, what it did in order of time; overlapped transfers stand with the worker that sends."""
    spans: list[list[Span]] = [[] for _ in program.workers]
    for number, task in enumerate(program.tasks):
        span = Span(label=task.label, category=task.category, start_s=run.start_s[number], end_s=run.end_s[number])
        owners = program.owners(task)
        if not owners and task.needs:
            owners = [q for q in [program.tasks[task.needs[0]].queue] if q is not None]
        for owner in owners:
            spans[owner].append(span)
    return [sorted(line, key=lambda s: (s.start_s, s.end_s)) for line in spans]


def _lane(priced: PricedPlan, worker: Worker, spans: list[Span], peak_bytes: int) -> Lane:
    first = priced.stages[worker.stages[0]]
    back = () if priced.shape.forward_only else (s for s in worker.stages if priced.stages[s].parts.runs_backward)
    devices = [
        device
        for number, group in enumerate(first.stage.replicas)
        if first.dealt == 1 or number == worker.replica
        for device in group
    ]
    return Lane(
        devices=tuple(devices),
        spans=tuple(spans),
        busy_s=sum(s.end_s - s.start_s for s in spans if s.category == "compute"),
        peak_memory_bytes=first.memory.total_bytes - first.kept_peak_bytes + peak_bytes,
        peak_in_flight=peak_live(worker.order, dict.fromkeys(back, ONE)),
    )


def _estimate(problem: Problem, priced: PricedPlan, timeline: Timeline) -> Estimate:
    plan = priced.plan
    used = {device for stage in plan.stages for group in stage.replicas for device in group}
    blocking = problem.workload.communication is Communication.BLOCKING
    model = SearchModel.BLOCKING if blocking else SearchModel.OVERLAPPED
    samples = plan.microbatch_size * plan.num_microbatches
    return Estimate(
        iteration_time_s=timeline.makespan_s,
        throughput_samples_per_s=samples / timeline.makespan_s if timeline.makespan_s else 0.0,
        bottleneck_s=period_s(problem, priced, model),
        bubble_fraction=timeline.bubble_fraction,
        peak_memory_bytes=max(lane.peak_memory_bytes for lane in timeline.lanes),
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
