"""From what every rank measured to one report."""

from __future__ import annotations

import statistics
import string
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.runtime.environment import ALLOCATOR_VARIABLES
from planner.runtime.report import CLEAN_CPU_DEVIATION, CLEAN_RUN_QUEUE_SHARE, Noise, RunReport, StageMeasurement
from planner.runtime.spec import RankResult, RunSpec, StepRecord
from planner.timeline import Lane, Span, Timeline

LETTERS = string.ascii_letters
MAX_WARM_UP = 2
"""Steps at the start that are not measured: the first passes cost 1.3-1.5 times as much (allocations, caches)."""


def merge(spec: RunSpec, results: Sequence[RankResult]) -> RunReport:
    """The report of a run; `results` in rank order."""
    num_warm_up = min(MAX_WARM_UP, spec.num_steps - 1)
    measured = range(num_warm_up, spec.num_steps)
    times = [max(result.steps[i].end_s - result.steps[i].start_s for result in results) for i in measured]
    noise = _noise(results, measured)
    losses = _losses(spec, results)
    differences = _differences(results)
    reference = results[0].reference
    return RunReport(
        steps=spec.num_steps,
        num_warm_up=num_warm_up,
        losses=losses,
        iteration_time_s=statistics.median(_clean(times, noise)),
        iteration_time_min_s=min(times),
        iteration_time_max_s=max(times),
        iteration_times_s=tuple(times),
        stages=tuple(_stage(spec, results, stage, measured) for stage in range(spec.layout.num_stages)),
        noise=noise,
        loss_relative_difference=None if reference is None else _relative(losses[0], reference.loss),
        gradient_max_difference=max(differences.values(), default=0.0) if spec.check else None,
        gradient_differences=differences,
        gradient_scale=None if reference is None else reference.gradient_scale,
        precision="" if spec.precision is None else spec.precision.weights,
        environment=results[0].environment | ALLOCATOR_VARIABLES,
        timeline=_timeline(spec, results),
        reference_s=_reference_s(results, measured),
    )


def _relative(found: float, wanted: float) -> float:
    return abs(found - wanted) / max(abs(wanted), 1e-12)


def _reference_s(results: Sequence[RankResult], measured: range) -> float | None:
    read = [r for result in results for i in measured if (r := result.steps[i].reference_s) is not None]
    return statistics.median(read) if read else None


def _losses(spec: RunSpec, results: Sequence[RankResult]) -> tuple[float, ...]:
    """Per step the mean over the replicas of the last stage, weighted with the samples that they see."""
    layout, stage = spec.layout, spec.layout.num_stages - 1
    shares = [layout.share(stage, replica) for replica in range(layout.num_replicas(stage))]
    last = [results[rank] for rank in layout.ranks_of(stage)]
    return tuple(
        sum(share * (result.steps[step].loss or 0.0) for share, result in zip(shares, last, strict=True))
        for step in range(spec.num_steps)
    )


def _differences(results: Sequence[RankResult]) -> dict[str, float]:
    merged: dict[str, float] = {}
    for result in results:
        for name, value in (result.gradient_differences or {}).items():
            merged[name] = max(value, merged.get(name, 0.0))
    return merged


def _noise(results: Sequence[RankResult], measured: range) -> Noise:
    cores = [result.core for result in results]
    known = all(result.steps[i].run_queue_s is not None for result in results for i in measured)
    noise = Noise(
        run_queue_shares=tuple(max(_share(result.steps[i]) for result in results) for i in measured) if known else (),
        cpu_deviations=tuple(map(max, zip(*(_deviations(result, measured) for result in results), strict=True))),
        num_clean=0,
        pinned=None not in cores and len(set(cores)) == len(cores),
    )
    return replace(noise, num_clean=sum(clean_iterations(noise)))


def _share(step: StepRecord) -> float:
    return (step.run_queue_s or 0.0) / max(step.end_s - step.start_s, 1e-9)


def _deviations(result: RankResult, measured: range) -> list[float]:
    usual = statistics.median(result.steps[i].busy_s for i in measured)
    return [abs(result.steps[i].busy_s / max(usual, 1e-9) - 1) for i in measured]


def clean_iterations(noise: Noise) -> list[bool]:
    """Which of the measured iterations nothing else disturbed; none where the system does not tell."""
    pairs = zip(noise.run_queue_shares, noise.cpu_deviations, strict=False)
    return [share < CLEAN_RUN_QUEUE_SHARE and deviation < CLEAN_CPU_DEVIATION for share, deviation in pairs]


def _clean(times: list[float], noise: Noise) -> list[float]:
    """Times of the clean iterations; all where none is, or where nobody knows."""
    return [time for time, good in zip(times, clean_iterations(noise), strict=False) if good] or times


def _stage(spec: RunSpec, results: Sequence[RankResult], stage: int, measured: range) -> StageMeasurement:
    layout = spec.layout
    own = [results[rank] for rank in layout.ranks_of(stage)]
    most = max(
        sum(len(layout.samples(stage, replica, number)) > 0 for number in range(layout.num_microbatches))
        for replica in range(len(own))
    )

    def slowest(value: Callable[[StepRecord], float]) -> float:
        return max(statistics.median(value(result.steps[i]) for i in measured) for result in own)

    return StageMeasurement(
        devices=tuple(device for group in spec.plan.stages[stage].replicas for device in group),
        forward_s=slowest(lambda step: step.forward_s[stage]) / most,
        backward_s=slowest(lambda step: step.backward_s[stage]) / most,
        all_reduce_s=slowest(lambda step: step.all_reduce_s),
        optimizer_s=slowest(lambda step: step.optimizer_s),
        busy_s=slowest(lambda step: step.busy_s),
        peak_memory_bytes=max(result.peak_memory_bytes for result in own),
        process_s=slowest(lambda step: step.process_s),
        passes_s={
            kind.removeprefix(str(stage)): slowest(lambda step, kind=kind: step.passes_s.get(kind, 0.0)) / most  # type: ignore[misc]
            for kind in _kinds(results, stage)
        },
    )


def _kinds(results: Sequence[RankResult], stage: int) -> list[str]:
    """The kinds of passes of a stage that ran: `2F`, `2B`."""
    found = {kind for result in results for kind in result.steps[-1].passes_s}
    return sorted(kind for kind in found if kind.rstrip(LETTERS) == str(stage))


def _timeline(spec: RunSpec, results: Sequence[RankResult]) -> Timeline:
    """The last step, its clock starting when the first rank starts."""
    steps = [result.steps[-1] for result in results]
    origin_s = min(step.start_s for step in steps)
    makespan_s = max(step.end_s for step in steps) - origin_s
    groups = [group for replicas in spec.layout.groups for group in replicas]
    lanes = tuple(_lane(*parts, origin_s) for parts in zip(groups, results, strict=True))
    busy_s = sum(lane.busy_s for lane in lanes)
    return Timeline(lanes=lanes, makespan_s=makespan_s, bubble_fraction=1 - busy_s / (makespan_s * len(lanes)))


def _lane(devices: tuple[str, ...], result: RankResult, origin_s: float) -> Lane:
    step = result.steps[-1]
    spans = tuple(_shifted(span, origin_s) for span in step.spans)
    return Lane(
        devices=devices,
        spans=spans,
        busy_s=sum(span.end_s - span.start_s for span in spans if span.category == "compute"),
        peak_memory_bytes=result.peak_memory_bytes,
        peak_in_flight=step.peak_in_flight,
    )


def _shifted(span: Span, origin_s: float) -> Span:
    return Span(
        label=span.label,
        category=span.category,
        start_s=span.start_s - origin_s,
        end_s=span.end_s - origin_s,
    )
