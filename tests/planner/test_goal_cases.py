"""Handed cases H06, H09 and H10 with others of their kind, and DawnPiper's interval property."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from builders import AMPLE_BYTES, MS, L, chain_graph, chain_problem, flat_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    CostTable,
    LayerCost,
    PlanResult,
    Problem,
    Profile,
    Replication,
    SearchModel,
    SearchOptions,
    Status,
    Training,
)
from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.hierarchy import Level
from planner.costs.stage_costs.pipedream import CrossingTensor
from planner.costs.stage_costs.pipedream_paper import PipeDreamPaperCost
from planner.ideals import Groups
from planner.optimizers.stage_cost_dp import least_bottleneck
from planner.service import plan

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "instances/cases/cases_handed.json").read_text())
}
GIB = 2**30
STRAIGHT = SearchOptions(search_model=SearchModel.CLOSED, replication=Replication.NONE, schedule="1f1b")


def cuts(found: PlanResult) -> list[int]:
    assert found.plan is not None
    return [len(stage.layers) for stage in found.plan.stages]


# H06: infeasible, with the shortfall and what helps


def stacked(cap_gib: float, *, layers: int = 8, devices: int = 4, microbatches: int = 8) -> Problem:
    """Layers of 2 GiB static memory (2**21 parameters of 1024 bytes) that keep 1 GiB per microbatch in flight."""
    return chain_problem(
        [L(f=1, b=2, p=2**21, a=GIB)] * layers,
        devices=devices,
        microbatches=microbatches,
        memory=int(cap_gib * GIB),
        static_bytes=1024.0,
    )


def least_gib(layers: int, stages: int, microbatches: int) -> float:
    """The smallest largest-stage memory of all splits: 2 GiB a layer and 1 GiB per layer and microbatch in flight."""
    return min(
        max(2 * n + n * min(microbatches, stages - s) for s, n in enumerate(split)) for split in splits(layers, stages)
    )


def splits(layers: int, stages: int) -> list[list[int]]:
    return [
        [b - a for a, b in zip((0, *ends), (*ends, layers), strict=True)]
        for ends in combinations(range(1, layers), stages - 1)
    ]


def remedies(result: PlanResult) -> dict[str, list[int]]:
    """Kind -> layers per stage of the remedy's plan."""
    assert result.report.infeasibility is not None
    return {
        remedy.kind: [len(stage.layers) for stage in remedy.plan.stages]
        for remedy in result.report.infeasibility.remedies
    }


def test_h06_shortfall_and_both_alternatives() -> None:
    expect, case = CASES["H06"]["expect"], CASES["H06"]["input"]
    result = plan(stacked(case["cap_gib"]), replace(STRAIGHT, num_stages=case["stages"]))
    assert result.report.status.value == expect["status"]
    assert result.report.status.value not in expect["not_status"]
    reason = result.report.infeasibility
    assert reason is not None
    assert reason.shortfall_bytes == (expect["smallest_sufficient_cap_gib"] - case["cap_gib"]) * GIB
    assert remedies(result)["memory"] == expect["plan_at_that_cap"]
    memory, fewer = ({r.kind: r for r in reason.remedies}[kind] for kind in ("memory", "num_microbatches"))
    assert memory.peak_memory_bytes == expect["smallest_sufficient_cap_gib"] * GIB
    other = expect["alternatives"][0]
    assert fewer.plan.num_microbatches == other["microbatches"]
    assert [len(stage.layers) for stage in fewer.plan.stages] == other["plan"]
    assert fewer.peak_memory_bytes == other["max_mem_gib"] * GIB
    assert "checked" in reason.remedy


@pytest.mark.parametrize(
    ("layers", "stages", "microbatches"), [(8, 4, 8), (8, 3, 8), (6, 3, 4), (9, 4, 6), (7, 2, 5), (10, 5, 8)]
)
def test_the_smallest_sufficient_memory_of_every_split(layers: int, stages: int, microbatches: int) -> None:
    least = least_gib(layers, stages, microbatches)
    options = replace(STRAIGHT, num_stages=stages)
    enough = stacked(least, layers=layers, devices=stages, microbatches=microbatches)
    assert plan(enough, options).plan is not None
    short = plan(stacked(least - 0.5, layers=layers, devices=stages, microbatches=microbatches), options)
    assert short.report.status is Status.INFEASIBLE
    assert short.report.infeasibility is not None
    assert short.report.infeasibility.shortfall_bytes == GIB // 2
    (memory,) = (r for r in short.report.infeasibility.remedies if r.kind == "memory")
    assert memory.peak_memory_bytes == least * GIB


@pytest.mark.parametrize(("cap", "fits"), [(9.5, 2), (8.5, 2), (7.5, 1), (6.5, 1)])
def test_the_largest_number_of_microbatches_that_fits(cap: float, fits: int) -> None:
    assert least_gib(8, 4, fits) <= cap < least_gib(8, 4, fits + 1)
    result = plan(stacked(cap), replace(STRAIGHT, num_stages=4))
    assert result.report.infeasibility is not None
    (fewer,) = (r for r in result.report.infeasibility.remedies if r.kind == "num_microbatches")
    assert fewer.plan.num_microbatches == fits


@pytest.mark.parametrize("cap", [9.5, 9.0, 8.5])
def test_the_fewest_devices_that_fit(cap: float) -> None:
    needed = next(n for n in range(1, 9) if any(least_gib(8, s, 8) <= cap for s in range(1, n + 1)))
    result = plan(stacked(cap), STRAIGHT)
    assert result.report.status is Status.INFEASIBLE
    assert result.report.infeasibility is not None
    (devices,) = (r for r in result.report.infeasibility.remedies if r.kind == "devices")
    assert devices.change.startswith(f"{needed} devices instead of 4")
    assert devices.num_devices_used == needed


# H10: bubble against kernel efficiency


def affine(overhead: float, slope: float, *, stages: int, batch: int, microbatch: int | None = None) -> Problem:
    """Equal layers, one per stage, of overhead + slope x size ms, a third of it in the forward pass."""
    graph = chain_graph([L(f=0)] * stages, 1)

    def table(size: int) -> CostTable:
        ms = (overhead + slope * size) * MS
        cost = LayerCost(forward_s=ms / 3, backward_s=2 * ms / 3)
        return CostTable(microbatch_size=size, layers={layer.id: cost for layer in graph.layers})

    return Problem(
        graph=graph,
        profiles=(Profile(device_type="device", tables=(table(1), table(batch))),),
        cluster=flat_cluster(stages, memory=AMPLE_BYTES),
        workload=Training(global_batch_size=batch, microbatch_size=microbatch),
    )


def pipeline_ms(overhead: float, slope: float, stages: int, batch: int, size: int) -> float:
    """(B / b + P - 1) t(b), the papers' closed form; exact for equal stages without transfers."""
    return (batch / size + stages - 1) * (overhead + slope * size)


def test_h10_the_best_microbatch_size() -> None:
    case, expect = CASES["H10"]["input"], CASES["H10"]["expect"]
    problem = affine(2, 1, stages=case["stages"], batch=case["samples_per_pipeline"])
    result = plan(problem, replace(STRAIGHT, num_stages=case["stages"]))
    assert result.plan is not None
    assert (result.plan.microbatch_size, result.plan.num_microbatches) == (expect["best_b"], expect["microbatches"])
    assert_both_say(result, expect["T"])


@pytest.mark.parametrize(("size", "ms"), CASES["H10"]["expect"]["ranking"])
def test_h10_every_size_has_its_time(size: int, ms: float) -> None:
    problem = affine(2, 1, stages=8, batch=64, microbatch=size)
    assert_both_say(plan(problem, replace(STRAIGHT, num_stages=8)), ms)


@pytest.mark.parametrize(
    ("overhead", "slope", "stages", "batch"),
    [(2, 1, 4, 64), (0, 1, 8, 32), (8, 1, 8, 64), (1, 4, 4, 48), (20, 1, 2, 60), (5, 2, 6, 36)],
)
def test_others_like_h10(overhead: float, slope: float, stages: int, batch: int) -> None:
    times = {
        size: pipeline_ms(overhead, slope, stages, batch, size) for size in range(1, batch + 1) if batch % size == 0
    }
    result = plan(affine(overhead, slope, stages=stages, batch=batch), replace(STRAIGHT, num_stages=stages))
    assert result.plan is not None
    assert times[result.plan.microbatch_size] == pytest.approx(min(times.values()))
    assert_both_say(result, min(times.values()))


def assert_both_say(result: PlanResult, ms: float) -> None:
    """The closed form that was searched, and the simulation; the report names which value is which."""
    assert result.report.search_model == "closed"
    assert result.report.objective_s is not None
    assert result.report.objective_s / MS == pytest.approx(ms, rel=1e-9)
    assert result.estimate is not None
    assert result.estimate.iteration_time_s / MS == pytest.approx(ms, rel=1e-9)


# H09: a real profile, a published plan


def vgg16(bandwidth: float, devices: int) -> PipeDreamPaperCost:
    nodes, crossing = CASES["H09"]["input"]["nodes"], CASES["H09"]["input"]["bytes_across_cut_after_node"]
    n = len(nodes)
    return PipeDreamPaperCost(
        groups=Groups(
            layers=tuple((i,) for i in range(n)),
            before=tuple((1 << i) >> 1 for i in range(n)),
            after=tuple((2 << i) % (1 << n) for i in range(n)),
            of_layer=tuple(range(n)),
        ),
        work_s=[(node["f"] + node["b"]) * MS for node in nodes],
        weight_bytes=[node["param_bytes"] for node in nodes],
        tensors=tuple(CrossingTensor(source=i, targets=1 << (i + 1), num_bytes=c) for i, c in enumerate(crossing)),
        levels=(Level(count=devices, bandwidth_bytes_per_s=bandwidth),),
    )


H09_BANDWIDTH = CASES["H09"]["input"]["bandwidth_GBps"] * 1e9


def test_h09_the_published_three_and_one() -> None:
    case, expect = CASES["H09"]["input"], CASES["H09"]["expect"]
    cost = vgg16(H09_BANDWIDTH, case["devices"])
    best = least_bottleneck(cost, cost.groups, case["devices"], most_replicas=case["devices"])
    assert best is not None
    assert best.value_s / MS == pytest.approx(expect["best_ms"], abs=5e-5)
    names = [node["name"] for node in case["nodes"]]
    found = [
        {
            "first": names[(stage.layers & -stage.layers).bit_length() - 1],
            "last": names[stage.layers.bit_length() - 1],
            "replicas": stage.degree,
        }
        for stage in best.stages
    ]
    assert found == expect["plan"]


def test_h09_data_parallelism_is_bound_by_its_all_reduce() -> None:
    expect, cost = CASES["H09"]["expect"], vgg16(H09_BANDWIDTH, 4)
    everything = StageShape(layers=(1 << len(cost.groups)) - 1, before=0, degree=4)
    assert cost.seconds(everything) / MS == pytest.approx(expect["pure_dp_ms"], abs=5e-5)
    assert cost.compute_s(everything.layers) / 4 / MS == pytest.approx(expect["ideal_ms"], abs=1e-4)


def test_with_ample_bandwidth_data_parallelism_is_ideal() -> None:
    cost = vgg16(1e15, 4)
    best = least_bottleneck(cost, cost.groups, 4, most_replicas=4)
    assert best is not None
    assert best.value_s / MS == pytest.approx(CASES["H09"]["expect"]["ideal_ms"], abs=5e-4)


@pytest.mark.parametrize(
    ("bandwidth", "devices"), [(0.5e9, 4), (1.25e9, 4), (3.125e9, 2), (3.125e9, 3), (12.5e9, 4), (1.25e9, 5)]
)
def test_others_like_h09(bandwidth: float, devices: int) -> None:
    """All plans of up to three stages, priced by the stated formula; the search may use more and is never worse."""
    cost = vgg16(bandwidth, devices)
    best = least_bottleneck(cost, cost.groups, devices, most_replicas=devices)
    assert best is not None
    few = min(of_three_stages(bandwidth, devices))
    assert best.value_s <= few * (1 + 1e-12)
    assert best.value_s == max(cost.seconds(stage) for stage in best.stages)
    assert sum(stage.degree for stage in best.stages) <= devices
    if len(best.stages) <= 3:
        assert best.value_s == pytest.approx(few, rel=1e-12)


def of_three_stages(bandwidth: float, devices: int) -> list[float]:
    case = CASES["H09"]["input"]
    nodes, crossing = case["nodes"], case["bytes_across_cut_after_node"]
    compute, weights = [0.0], [0.0]
    for node in nodes:
        compute.append(compute[-1] + (node["f"] + node["b"]) * MS)
        weights.append(weights[-1] + node["param_bytes"])

    def seconds(i: int, j: int, r: int) -> float:
        sync = 2 * (r - 1) / r * (weights[j] - weights[i]) / bandwidth
        received = 2 * crossing[i - 1] / (bandwidth * r) if i else 0.0
        return max((compute[j] - compute[i]) / r, sync, received)

    n, values = len(nodes), []
    for stages in range(1, 4):
        for degrees in (d for d in degree_tuples(stages, devices)):
            for ends in combinations(range(1, n), stages - 1):
                bounds = list(zip((0, *ends), (*ends, n), strict=True))
                values.append(max(seconds(i, j, r) for (i, j), r in zip(bounds, degrees, strict=True)))
    return values


def degree_tuples(stages: int, devices: int) -> list[tuple[int, ...]]:
    if stages == 1:
        return [(r,) for r in range(1, devices + 1)]
    return [(r, *rest) for r in range(1, devices) for rest in degree_tuples(stages - 1, devices - r)]


# DawnPiper (Peng et al. 2025): the best cut of two stages lies between the compute- and the memory-balanced one


@given(
    layers=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9)), min_size=2, max_size=7),
    microbatches=st.integers(2, 4),
    spare=st.integers(0, 8),
)
@settings(max_examples=30)
def test_the_best_cut_lies_between_the_balanced_ones(
    layers: list[tuple[int, int, int]], microbatches: int, spare: int
) -> None:
    made = [L(f=f, b=2 * f, p=p, a=a) for f, p, a in layers]
    time = {
        c: max(sum(3 * f for f, _, _ in layers[:c]), sum(3 * f for f, _, _ in layers[c:])) for c in cut_places(made)
    }
    need = {c: max(stage_bytes(made[:c], min(microbatches, 2)), stage_bytes(made[c:], 1)) for c in cut_places(made)}
    limit = min(need.values()) + spare
    problem = chain_problem(made, devices=2, microbatches=microbatches, memory=limit)
    result = plan(problem, replace(STRAIGHT, num_stages=2, num_finalists=1))
    assert result.plan is not None
    by_time = [c for c in time if time[c] == min(time.values())]
    by_memory = [c for c in need if need[c] == min(need.values())]
    best = min(time[c] for c in time if need[c] <= limit)
    between = range(min(*by_time, *by_memory), max(*by_time, *by_memory) + 1)
    assert any(time[c] == best and need[c] <= limit for c in between)
    assert time[cuts(result)[0]] == best


def cut_places(layers: list[L]) -> range:
    return range(1, len(layers))


def stage_bytes(layers: list[L], held: int) -> int:
    return sum(layer.p + held * layer.a for layer in layers)
