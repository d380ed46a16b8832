"""The handed cases (tests/instances/cases): each right value, and others of its kind."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builders import AMPLE_BYTES, MS, L, chain_problem, flat_cluster, profile_of

from planner import (
    Cluster,
    CostTable,
    Device,
    DeviceType,
    Edge,
    Inference,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Objective,
    PlanResult,
    Problem,
    Profile,
    Replication,
    SearchModel,
    SearchOptions,
    Status,
    Training,
)
from planner.costs.model import CostModel
from planner.costs.objective import objective_s
from planner.plan import Plan, Stage
from planner.service import plan
from planner.verify import verify

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "instances/cases/cases_handed.json").read_text())
}
CLOSED = SearchOptions(search_model=SearchModel.CLOSED)
STRAIGHT = replace(CLOSED, replication=Replication.NONE)
SEARCHES = ["chain_dp", "milp", "exhaustive"]


def cuts(result: PlanResult) -> list[int]:
    assert result.plan is not None
    return [len(stage.layers) for stage in result.plan.stages]


def replicas(result: PlanResult) -> list[int]:
    assert result.plan is not None
    return [len(stage.replicas) for stage in result.plan.stages]


def objective_ms(result: PlanResult) -> float:
    assert result.report.objective_s is not None
    return result.report.objective_s / MS


def solved(problem: Problem, options: SearchOptions) -> PlanResult:
    result = plan(problem, options)
    assert result.plan is not None, result.report
    assert verify(result.plan, problem) == ()
    return result


def throughput(stages: int, optimizer: str = "auto") -> SearchOptions:
    return replace(STRAIGHT, objective=Objective.THROUGHPUT, num_stages=stages, optimizer=optimizer)


@pytest.mark.parametrize("optimizer", ["chain_dp", "milp"])
def test_h01_every_layer_is_placed_and_no_stage_holds_more_than_the_ceiling(optimizer: str) -> None:
    problem = chain_problem([L(f=1)] * 30, devices=4, microbatches=1, inference=True)
    result = solved(problem, throughput(4, optimizer))
    expect = CASES["H01"]["expect"]
    assert sum(cuts(result)) == expect["sum_layers"]
    assert max(cuts(result)) == expect["max_per_stage"]
    assert min(cuts(result)) >= expect["min_per_stage_at_least"]


@pytest.mark.parametrize(("layers", "stages"), [(7, 3), (13, 5), (28, 4), (61, 16)])
def test_remainders_are_spread_over_the_stages(layers: int, stages: int) -> None:
    problem = chain_problem([L(f=1)] * layers, devices=stages, microbatches=1, inference=True)
    result = solved(problem, throughput(stages, "chain_dp"))
    assert sum(cuts(result)) == layers
    assert max(cuts(result)) == -(-layers // stages)
    assert min(cuts(result)) >= 1


@pytest.mark.parametrize("optimizer", SEARCHES)
def test_h02_no_stage_is_empty_and_ties_break_the_same_way(optimizer: str) -> None:
    problem = chain_problem([L(f=1)] * 5, devices=4, microbatches=1, inference=True)
    result, again = (solved(problem, throughput(4, optimizer)) for _ in range(2))
    assert max(cuts(result)) == CASES["H02"]["expect"]["max_cost"]
    assert cuts(result) in CASES["H02"]["expect"]["plans"]
    assert result.plan == again.plan


def test_h03_a_dear_head_takes_layers_off_the_last_stage() -> None:
    case = CASES["H03"]["input"]
    ms = [case["embed_ms_on_first"], *case["layer_ms"], case["head_ms_on_last"]]
    problem = chain_problem([L(f=t) for t in ms], devices=8, microbatches=1, inference=True)
    result, expect = solved(problem, throughput(8, "chain_dp")), CASES["H03"]["expect"]
    assert objective_ms(result) == pytest.approx(expect["best_bottleneck_ms"], rel=1e-12)
    assert cuts(result)[-1] - 1 <= expect["last_stage_layers_max"]
    assert cuts(result)[0] - 1 <= expect["first_stage_layers_max"]
    assert result.report.status is Status.OPTIMAL


def test_h03_the_equal_split_is_priced_as_the_thread_says() -> None:
    case = CASES["H03"]["input"]
    ms = [case["embed_ms_on_first"], *case["layer_ms"], case["head_ms_on_last"]]
    problem = chain_problem([L(f=t) for t in ms], devices=8, microbatches=1, inference=True)
    names = [layer.id for layer in problem.graph.layers]
    ends = [0, 9, 17, 25, 33, 41, 49, 57, 66]
    equal = Plan(
        stages=tuple(
            Stage(layers=tuple(names[a:b]), replicas=((f"d{n}",),)) for n, (a, b) in enumerate(pairwise(ends))
        ),
        schedule="1f1b",
        microbatch_size=1,
        num_microbatches=1,
    )
    value = objective_s(problem, CostModel(problem).price(equal), Objective.THROUGHPUT, SearchModel.CLOSED)
    assert value / MS == pytest.approx(CASES["H03"]["expect"]["uniform_bottleneck_ms"], rel=1e-12)


def bloom(memory: int) -> Problem:
    params = CASES["H04"]["input"]["item_params"]
    sizes = [params["embed"], *[params["layer"]] * 70, params["head_tied"]]
    layers = [L(f=size / 1e9, p=size) for size in sizes]
    return chain_problem(layers, devices=12, microbatches=1, inference=True, memory=memory)


def test_h04_parameter_balance_gives_the_trained_split() -> None:
    expect = CASES["H04"]["expect"]
    result = solved(bloom(AMPLE_BYTES), throughput(12, "chain_dp"))
    split = cuts(result)
    assert [split[0] - 1, *split[1:-1], split[-1] - 1] == expect["decoder_layers_per_stage"]
    assert objective_ms(result) == pytest.approx(expect["largest_stage_params"] / 1e9, rel=1e-12)


def test_h04_exact_fit_is_feasible_and_one_byte_less_is_not() -> None:
    expect = CASES["H04"]["expect"]
    result = solved(bloom(expect["largest_stage_params"]), throughput(12, "chain_dp"))
    assert cuts(result)[0] - 1 == expect["decoder_layers_per_stage"][0]
    assert result.estimate is not None
    assert result.estimate.peak_memory_bytes == expect["largest_stage_params"]
    short = plan(bloom(expect["largest_stage_params"] - 1), throughput(12, "chain_dp"))
    assert short.report.status is Status.INFEASIBLE
    assert short.report.infeasibility is not None
    assert short.report.infeasibility.shortfall_bytes == 1


GIB = 2**30


def h05_problem(cap_gib: float) -> Problem:
    """2 GiB of static memory per layer through 2**21 parameters of 1024 bytes each."""
    layers = [L(f=1, b=2, p=2**21, a=GIB)] * 8
    return chain_problem(layers, devices=4, microbatches=8, memory=int(cap_gib * GIB), static_bytes=1024.0)


@pytest.mark.parametrize("optimizer", SEARCHES)
def test_h05_early_stages_hold_more_microbatches(optimizer: str) -> None:
    expect = CASES["H05"]["expect"]
    options = replace(STRAIGHT, num_stages=4, schedule="1f1b", optimizer=optimizer)
    result = solved(h05_problem(11), options)
    assert cuts(result) == expect["unique_plan"]
    assert result.estimate is not None
    assert [s.memory.total_bytes / GIB for s in result.estimate.stages] == expect["mem_gib"]
    assert objective_ms(result) == pytest.approx(expect["T_closed"])
    assert result.estimate.iteration_time_s / MS == pytest.approx(expect["T_event"])


def test_h05_the_balanced_plan_needs_twelve() -> None:
    expect = CASES["H05"]["expect"]["balanced_plan_ooms"]
    options = replace(STRAIGHT, num_stages=4, schedule="1f1b")
    result = solved(h05_problem(CASES["H05"]["expect"]["min_cap_gib_for_balanced"]), options)
    assert cuts(result) == expect["plan"]
    assert result.estimate is not None
    assert [s.memory.total_bytes / GIB for s in result.estimate.stages] == expect["mem"]
    assert result.estimate.iteration_time_s / MS == pytest.approx(expect["T"])


def test_h05_too_little_memory_is_an_answer_with_the_shortfall() -> None:
    result = plan(h05_problem(9.5), replace(STRAIGHT, num_stages=4, schedule="1f1b"))
    assert result.report.status is Status.INFEASIBLE
    reason = result.report.infeasibility
    assert reason is not None
    assert reason.constraint == "memory"
    assert reason.shortfall_bytes == GIB // 2
    assert "10.00 GiB" in reason.message
    assert "9.50 GiB" in reason.message


def h07_problem() -> Problem:
    case = CASES["H07"]["input"]
    devices = case["devices"]
    names = [f"layer{i}" for i in range(case["layers"])]
    size = int(case["gb_read_per_layer"] * 1e9)
    graph = LayerGraph(
        layers=tuple(Layer(id=name, parameter_bytes=size) for name in names),
        edges=tuple(Edge(source=a, target=b) for a, b in pairwise(names)),
    )
    cluster = Cluster(
        device_types=tuple(DeviceType(name=d["name"], memory_bytes=int(d["ram_gb"] * 1e9)) for d in devices),
        devices=tuple(Device(id=d["name"], type=d["name"]) for d in devices),
        links=tuple(Link(a=d["name"], b="switch", bandwidth_bytes_per_s=1e10) for d in devices),
    )
    profiles = tuple(
        Profile(
            device_type=d["name"],
            dtype="int8",
            tables=(CostTable(microbatch_size=1, layers={n: LayerCost(forward_s=1 / d["gb_per_s"]) for n in names}),),
        )
        for d in devices
    )
    work = Inference(global_batch_size=1, weight_bytes_per_parameter=1.0)
    return Problem(graph=graph, profiles=profiles, cluster=cluster, workload=work)


def test_h07_layers_follow_the_speed_of_unequal_devices() -> None:
    result, expect = solved(h07_problem(), throughput(5, "chain_dp")), CASES["H07"]["expect"]
    assert result.plan is not None
    placed = {stage.replicas[0][0]: len(stage.layers) for stage in result.plan.stages}
    names = [d["name"] for d in CASES["H07"]["input"]["devices"]]
    assert [placed[name] for name in names] == expect["layers_per_device"]
    assert objective_ms(result) == pytest.approx(expect["bottleneck_ms"], rel=1e-5)


def h08_problem(*, scale: float = 1.0, names: list[str] | None = None, extra_parameter_bytes: int = 0) -> Problem:
    """Microbatches of 12 samples, which 1 to 4 replicas can split; tensor sizes rounded down to multiples of 12."""
    raw = CASES["H08"]["input"]["layers_ms_bytes"]
    layers = [
        L(f=x["f"] * scale, b=x["b"] * scale, p=int(x["p"]) + extra_parameter_bytes, o=int(x["o"]) // 12 * 12)
        for x in raw
    ]
    return chain_problem(
        layers,
        devices=4,
        microbatches=8,
        microbatch_size=12,
        bandwidth_per_ms=1e7 / scale,
        gradient_bytes=4.0,
        names=names,
    )


@pytest.mark.parametrize("optimizer", ["chain_dp", "exhaustive"])
def test_h08_the_busy_stage_is_replicated_not_the_fat_one(optimizer: str) -> None:
    result, expect = (
        solved(h08_problem(), replace(CLOSED, optimizer=optimizer, schedule="1f1b")),
        CASES["H08"]["expect"],
    )
    assert cuts(result) == expect["plan"]["cuts"]
    assert replicas(result) == expect["plan"]["replicas"]
    assert objective_ms(result) == pytest.approx(expect["T_closed"], rel=1e-6)
    assert result.estimate is not None
    assert result.estimate.iteration_time_s / MS == pytest.approx(expect["T_event"], rel=1e-4)


def test_h08_pure_data_parallelism_is_priced_as_derived() -> None:
    result = solved(h08_problem(), replace(CLOSED, num_stages=1))
    assert replicas(result) == [4]
    assert objective_ms(result) == pytest.approx(CASES["H08"]["expect"]["pure_dp_T"], rel=1e-6)


NAMES = {
    "writers would merge": ["block-1", "block 1", "block/1"],
    "long": ["n" * 299 + x for x in "abc"],
    "keywords": ["free", "inf", "st"],
    "punctuation": ["a:b", 'q"q', "é<>&"],
    "numbers": ["1e9", "0", "-3"],
}


@pytest.mark.parametrize("optimizer", ["chain_dp", "milp"])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES.keys())
def test_h13_names_change_nothing(names: list[str], optimizer: str) -> None:
    options = replace(CLOSED, optimizer=optimizer, replication=Replication.NONE)
    result, base = solved(h08_problem(names=names), options), solved(h08_problem(), options)
    assert (cuts(result), replicas(result)) == (cuts(base), replicas(base))
    assert result.report.objective_s == base.report.objective_s


@pytest.mark.parametrize("optimizer", ["chain_dp", "milp"])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3])
def test_h13_units_scale_the_time_exactly(scale: float, optimizer: str) -> None:
    options = replace(CLOSED, optimizer=optimizer)
    result, base = solved(h08_problem(scale=scale), options), solved(h08_problem(), options)
    assert (cuts(result), replicas(result)) == (cuts(base), replicas(base))
    assert result.report.objective_s == pytest.approx((base.report.objective_s or 0) * scale, rel=1e-9)


def test_h13_one_byte_more_changes_nothing() -> None:
    result, base = solved(h08_problem(extra_parameter_bytes=1), CLOSED), solved(h08_problem(), CLOSED)
    assert (cuts(result), replicas(result)) == (cuts(base), replicas(base))
    assert result.report.objective_s == pytest.approx(base.report.objective_s or 0, rel=1e-6)


def h15_problem() -> Problem:
    """Edges of one source with different sizes are different tensors; a gradient returns for each."""
    case = CASES["H15"]["input"]
    graph = LayerGraph(
        layers=tuple(Layer(id=name) for name in case["nodes"]),
        edges=tuple(
            Edge(source=a, target=b, tensor=f"to {b}", bytes_per_sample=int(mb * 1e6)) for a, b, mb in case["edges_mb"]
        ),
    )
    layers = [L(f=ms * 0.4, b=ms * 0.6) for ms in case["ms"]]
    return Problem(
        graph=graph,
        profiles=(profile_of(graph, layers, 1),),
        cluster=flat_cluster(2, bandwidth=case["mb_per_ms"] * 1e6 / MS),
        workload=Training(global_batch_size=2, microbatch_size=1),
    )


@pytest.mark.parametrize("optimizer", SEARCHES)
def test_h15_skips_over_the_boundary_are_paid_for(optimizer: str) -> None:
    result = solved(h15_problem(), replace(STRAIGHT, num_stages=2, optimizer=optimizer))
    expect = CASES["H15"]["expect"]["best"]
    assert cuts(result)[0] == expect["first_stage"]
    assert objective_ms(result) == pytest.approx(expect["T"])


@pytest.mark.parametrize(("first", "ms"), CASES["H15"]["expect"]["all"].items())
def test_h15_every_cut_has_its_price(first: str, ms: float) -> None:
    problem, at = h15_problem(), int(first)
    names = [layer.id for layer in problem.graph.layers]
    both = Plan(
        stages=(
            Stage(layers=tuple(names[:at]), replicas=(("d0",),)),
            Stage(layers=tuple(names[at:]), replicas=(("d1",),)),
        ),
        schedule="1f1b",
        microbatch_size=1,
        num_microbatches=2,
    )
    value = objective_s(problem, CostModel(problem).price(both), Objective.ITERATION_TIME, SearchModel.CLOSED)
    assert value / MS == pytest.approx(ms)


def h16_problem() -> Problem:
    layers = [L(f=x["f"], b=x["b"], p=int(x["p"]), o=int(x["o"])) for x in CASES["H16"]["input"]["layers"]]
    return chain_problem(layers, devices=4, microbatches=4, microbatch_size=4, bandwidth_per_ms=2e6, gradient_bytes=4.0)


@pytest.mark.parametrize("optimizer", ["chain_dp", "exhaustive"])
def test_h16_idle_devices_can_be_best_and_are_said(optimizer: str) -> None:
    options = replace(CLOSED, optimizer=optimizer, schedule="1f1b")
    result, expect = solved(h16_problem(), options), CASES["H16"]["expect"]
    assert (cuts(result), replicas(result)) == (expect["best"]["cuts"], expect["best"]["replicas"])
    assert objective_ms(result) == pytest.approx(expect["best"]["T"])
    assert result.estimate is not None
    assert result.estimate.iteration_time_s / MS == pytest.approx(expect["best"]["T_event"])
    assert result.estimate.num_devices_idle == expect["best"]["devices_idle"]
    assert any("2 of 4 devices stay idle" in note for note in result.report.notes)


def test_h16_the_simulator_picks_the_faster_schedule() -> None:
    """Early backwards wait for transfers here: all forwards first takes 31 ms, 1F1B 32 ms, and both fit."""
    result = solved(h16_problem(), CLOSED)
    assert result.plan is not None
    assert result.plan.schedule == "gpipe"
    assert result.estimate is not None
    assert result.estimate.iteration_time_s / MS == pytest.approx(31.0)


def test_h16_using_all_devices_costs_what_was_derived() -> None:
    result = solved(h16_problem(), replace(CLOSED, num_finalists=50))
    full = [r.objective_s / MS for r in result.runners_up if [len(s.replicas) for s in r.plan.stages] == [2, 2]]
    assert min(full) == pytest.approx(CASES["H16"]["expect"]["best_using_all_four"]["T"])
