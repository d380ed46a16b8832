"""Predictions: layer costs, link and overhead as measured make a problem; the project's simulator does the rest."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace

from benchmarks.truth.cases import DEVICES, Case
from benchmarks.truth.links import LinkCost
from planner.cluster import Cluster, Device, DeviceKind, DeviceType, Link
from planner.costs.model import CostModel, PricedStage
from planner.graph import LayerGraph
from planner.plan import Plan
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.runtime.program import LOSS_LAYER
from planner.runtime.report import RunReport, StageMeasurement
from planner.simulation.estimate import estimate_priced
from planner.workload import Training

DEVICE_TYPE = "core"
MEMORY_BYTES = 16 * 2**30


def problem_of(
    graph: LayerGraph, costs: Mapping[str, LayerCost], link: LinkCost, overhead_s: float, case: Case, microbatch: int
) -> Problem:
    """The problem that a case's plan answers, on two cores."""
    table = CostTable(microbatch_size=microbatch, layers=dict(costs))
    joined = Link(
        a=DEVICES[0],
        b=DEVICES[1],
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        latency_s=link.latency_s,
        shared=False,
    )
    return Problem(
        graph=graph,
        profiles=(Profile(device_type=DEVICE_TYPE, tables=(table,), action_overhead_s=overhead_s),),
        cluster=Cluster(
            device_types=(DeviceType(name=DEVICE_TYPE, memory_bytes=MEMORY_BYTES, kind=DeviceKind.CPU),),
            devices=tuple(Device(id=device, type=DEVICE_TYPE) for device in DEVICES),
            links=(joined,),
        ),
        workload=Training(
            global_batch_size=microbatch * case.num_microbatches,
            microbatch_size=microbatch,
            num_microbatches=case.num_microbatches,
        ),
    )


def layers_of(graph: LayerGraph) -> list[str]:
    """All but the loss, which belongs to the last one."""
    return [layer.id for layer in graph.layers if layer.id != LOSS_LAYER]


def overhead_s(reports: Iterable[tuple[Case, RunReport]]) -> float:
    """CPU seconds per pass beside passes and optimizer, threads that transfer included: median over runs and ranks."""
    found = []
    for case, report in reports:
        by_rank: dict[tuple[str, ...], list[int]] = {}
        for number, stage in enumerate(report.stages):
            by_rank.setdefault(stage.devices, []).append(number)
        for stages in by_rank.values():
            one = report.stages[stages[0]]
            passes = sum(sum(report.stages[s].passes_s.values()) for s in stages) * case.num_microbatches
            kinds = sum(len([k for k in report.stages[s].passes_s if k != "loss"]) for s in stages)
            found.append((one.process_s - passes - one.optimizer_s) / (kinds * case.num_microbatches))
    return statistics.median(found)


def replayed(problem: Problem, plan: Plan, report: RunReport) -> float:
    """Seconds of the simulated iteration when every stage takes what it took in the run (CPU time): without the
    profile's errors, what is left is the simulator's."""
    priced = CostModel(problem).price(plan)
    overhead = problem.profiles[0].action_overhead_s
    stages = tuple(
        _as_measured(stage, measured, overhead, first=number == _first_on_rank(plan, number))
        for number, (stage, measured) in enumerate(zip(priced.stages, report.stages, strict=True))
    )
    return estimate_priced(problem, replace(priced, stages=stages)).iteration_time_s


def _first_on_rank(plan: Plan, number: int) -> int:
    return plan.rank_of.index(plan.rank_of[number])


def _as_measured(stage: PricedStage, measured: StageMeasurement, overhead: float, *, first: bool) -> PricedStage:
    """`optimizer_s` is the process's, one step for all its stages: charged to the first of them."""
    passes = {kind: seconds + overhead for kind, seconds in measured.passes_s.items()}
    forward = passes["F"] + measured.passes_s.get("loss", 0.0)
    return replace(
        stage,
        seconds=replace(
            stage.seconds,
            forward_s=forward,
            backward_s=passes.get("B", 0.0),
            optimizer_s=measured.optimizer_s if first else 0.0,
        ),
        split=replace(stage.split, input_s=passes.get("I", 0.0), weight_s=passes.get("W", 0.0)),
    )
