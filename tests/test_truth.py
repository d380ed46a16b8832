"""The benchmark of predicted against measured runs: its arithmetic, and what holds whatever the machine is doing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.truth.cases import CASES, DEVICES, OWN, TORCH, Case
from benchmarks.truth.corun import DEVICE, SPLIT, WHOLE, CoRun, RankCosts, layer_by_layer, layer_costs
from benchmarks.truth.links import LinkCost, LinkTimes, link_cost
from benchmarks.truth.models import MODELS
from benchmarks.truth.passes import PassBytes
from benchmarks.truth.predicting import layers_of, overhead_s, problem_of, replayed
from benchmarks.truth.published import problem_and_plan
from benchmarks.truth.summary import kendall_tau, memory_figures, regrets, time_figures
from benchmarks.truth.walking import peak_bytes
from planner.graph import Edge, Layer, LayerGraph
from planner.profile import LayerCost
from planner.runtime import Noise, RunReport, StageMeasurement, check_runnable, run_in_turn
from planner.runtime.launch import Launcher
from planner.runtime.running import shared_folder
from planner.simulation.estimate import simulate_plan
from planner.verify import verify
from profiles.tracing import TraceLoader

LAYERS = ("embedding", "a", "b", "head")
BYTES = 100
GRAPH = LayerGraph(
    layers=(*(Layer(id=name, parameter_bytes=40) for name in LAYERS), Layer(id="loss")),
    edges=tuple(Edge(source=a, target=b, bytes_per_sample=BYTES) for a, b in pairwise((*LAYERS, "loss"))),
    colocated=(("head", "loss"),),
)
COSTS = dict.fromkeys(LAYERS, LayerCost(forward_s=1.0, backward_s=2.0, backward_input_s=1.0, backward_weight_s=1.0))
COSTS |= {"loss": LayerCost(forward_s=0.0)}
FREE = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e18, medians_s={})
PEAK_TOLERANCE = 0.08
"""Of peaks at allocator level: there is no clock in them."""


def measured(case: Case, seconds: dict[str, float], process_s: float) -> RunReport:
    """A run in which every stage's passes took the same; its iteration took 20 s."""
    stages = tuple(
        StageMeasurement(
            devices=stage.replicas[0],
            forward_s=0.0,
            backward_s=0.0,
            all_reduce_s=0.0,
            optimizer_s=0.5,
            busy_s=0.0,
            peak_memory_bytes=0,
            process_s=process_s,
            passes_s=seconds,
        )
        for stage in case.plan(LAYERS, 1).stages
    )
    return RunReport(
        steps=4,
        num_warm_up=2,
        losses=(),
        iteration_time_s=20.0,
        iteration_time_min_s=20.0,
        iteration_time_max_s=20.0,
        iteration_times_s=(20.0, 20.0),
        stages=stages,
        noise=Noise(run_queue_shares=(), num_clean=0, pinned=True),
    )


def test_a_prediction_is_the_simulated_iteration() -> None:
    case = Case(schedule="1f1b", cuts=(2,))
    problem = problem_of(GRAPH, COSTS, FREE, 0.5, case, 1)
    timeline, estimate = simulate_plan(problem, case.plan(LAYERS, 1))
    forward, backward = 2 * 1.0 + 0.5, 2 * 2.0 + 0.5
    assert estimate.iteration_time_s == pytest.approx((4 + 1) * (forward + backward))
    assert [lane.devices for lane in timeline.lanes] == [(device,) for device in DEVICES]


def test_the_simulator_is_tested_alone_with_the_seconds_of_the_run() -> None:
    case = Case(schedule="1f1b", cuts=(2,))
    problem = problem_of(GRAPH, COSTS, FREE, 0.25, case, 1)
    report = measured(case, {"F": 1.0, "B": 2.0}, process_s=0.0)
    assert replayed(problem, case.plan(LAYERS, 1), report) == pytest.approx((4 + 1) * (1.25 + 2.25) + 0.5)


def test_overhead_is_what_a_process_does_beside_its_passes() -> None:
    case = Case(schedule="1f1b", cuts=(2,))
    passes = 4 * (1.0 + 2.0)
    report = measured(case, {"F": 1.0, "B": 1.5, "loss": 0.5}, process_s=passes + 0.5 + 0.8)
    assert overhead_s([(case, report)]) == pytest.approx(0.8 / 8)


def test_a_link_is_a_line_through_the_medians() -> None:
    sizes = {1000: 3.0, 4000: 6.0, 8000: 10.0}
    sender = LinkTimes(at_s={size: [0.0, 1.0, 2.0] for size in sizes})
    receiver = LinkTimes(at_s={size: [s, 1.0 + s, 90.0] for size, s in sizes.items()})
    found = link_cost(sender, receiver)
    assert found.medians_s == sizes
    assert found.latency_s == pytest.approx(2.0)
    assert found.bandwidth_bytes_per_s == pytest.approx(1000.0)


def row(name: str, predicted_s: float, measured_s: float, **fields: Any) -> dict[str, Any]:
    """A row of the benchmark."""
    return {
        "model": "m",
        "plan": name,
        "executor": "own",
        "num_microbatches": 4,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "replayed_s": measured_s,
        "drift": 0.0,
        "num_clean": 5,
    } | fields


def test_figures_leave_disturbed_runs_out() -> None:
    rows = [row("a", 1.0, 1.0), row("b", 1.02, 1.0), row("c", 0.9, 1.0), row("d", 5.0, 1.0, num_clean=2)]
    found = time_figures(rows)
    assert found["clean_runs"] == 3
    assert (found["median"], found["worst"]) == (pytest.approx(0.02), pytest.approx(0.1))
    assert found["bias"] == pytest.approx(-0.08 / 3)
    assert found["replay_worst"] == 0.0


def test_regret_is_how_much_slower_the_chosen_plan_is() -> None:
    rows = [row("a", 1.0, 1.1), row("b", 1.2, 1.0), row("c", 9.0, 3.0, num_microbatches=8)]
    assert regrets(rows) == {"m x4": pytest.approx(0.1), "m x8": 0.0}
    assert kendall_tau(rows) == -1.0


def test_memory_figures_are_of_our_own_executor() -> None:
    rank = {"simulated_bytes": 98, "measured_bytes": 100}
    rows = [row("a", 1.0, 1.0, ranks=[rank, rank]), row("b", 1.0, 1.0, executor="torch", ranks=[rank])]
    assert memory_figures(rows) == {
        "ranks": 2,
        "median": pytest.approx(0.02),
        "p90": pytest.approx(0.02),
        "worst": pytest.approx(0.02),
        "bias": pytest.approx(-0.02),
    }


def test_peaks_are_walked() -> None:
    """One microbatch of a model on one rank after the other: by hand."""
    passes = {
        layer: {
            "F": PassBytes(net=1000, peak=1200),
            "B first": PassBytes(net=-1000 + 40, peak=300),
            "B": PassBytes(net=-1000, peak=500),
        }
        for layer in LAYERS
    }
    passes["head"]["loss"] = PassBytes(net=50, peak=80)
    plan = Case(schedule="gpipe", cuts=(2,), num_microbatches=2).plan(LAYERS, 1)
    largest = dict.fromkeys(LAYERS, 40)
    held = 2 * (BYTES + 2 * 1000 + 50)
    assert peak_bytes(plan, GRAPH, passes, largest, 1) == 3 * 80 + held + 300
    assert peak_bytes(plan, GRAPH, passes, largest, 0) == 3 * 80 + 2 * 2000 + BYTES + 300


def test_every_case_is_a_legal_plan() -> None:
    layers = [f"l{number}" for number in range(10)]
    graph = LayerGraph(layers=tuple(Layer(id=name) for name in (*layers, "loss")), edges=())
    costs = dict.fromkeys((*layers, "loss"), COSTS["a"])
    for name, cases in CASES.items():
        assert name in MODELS
        assert len({case.name for case in cases}) == len(cases)
        for case in cases:
            plan = case.plan(layers, 1)
            assert not verify(plan, problem_of(graph, costs, FREE, 0.0, case, 1))
            assert check_runnable(plan, case.executor).num_ranks == 2


def test_the_profile_runs_every_layer_alone() -> None:
    plan = layer_by_layer(GRAPH, 2)
    check_runnable(plan)
    assert [stage.layers for stage in plan.stages] == [("embedding",), ("a",), ("b",), ("head", "loss")]
    assert {stage.replicas for stage in plan.stages} == {((DEVICE,),)}
    assert plan.num_microbatches == WHOLE + SPLIT
    assert plan.actions[0][:5] == ("0F0", "1F0", "2F0", "3F0", "3B0")
    assert plan.actions[0][-8:] == ("3I4", "2I4", "1I4", "0I4", "3W4", "2W4", "1W4", "0W4")


@pytest.mark.parametrize("parallel", ["tp1pp2", "tp4pp1"])
def test_published_runs_are_plans(parallel: str) -> None:
    problem, plan = problem_and_plan({"model": "llama3-70b", "parallel": parallel, "layer_num": 12, "mbc": 4})
    assert not verify(plan, problem)
    assert sum(len(group) for stage in plan.stages for group in stage.replicas) == 8


SMALL = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 4, "n_head": 2, "n_embd": 32,
    "n_positions": 32, "vocab_size": 512, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
SMALL_CASES = (
    Case(schedule="1f1b", cuts=(3,)),
    Case(schedule="gpipe", cuts=(3,)),
    Case(schedule="interleaved_1f1b", cuts=(2, 3, 4)),
    Case(schedule="zb_h1", cuts=(3,)),
    Case(schedule="zb_v", cuts=(2, 3, 4)),
)


@pytest.fixture(scope="module")
def small() -> tuple[RankCosts, list[RunReport]]:
    """A small model's profile of two processes, and its runs."""
    loader = TraceLoader(source=SMALL, sequence_length=32)
    with shared_folder() as folder, Launcher(CoRun(loader=loader, microbatch_size=2, folder=folder)) as launcher:
        costs, _ = launcher.results(lambda done, loss: None)
    plans = [(case.plan(layers_of(costs.graph), 2), case.executor) for case in SMALL_CASES]
    return costs, run_in_turn(plans, loader, num_steps=3, timeout_s=240.0)


def test_costs_are_positive_and_complete(small: tuple[RankCosts, list[RunReport]]) -> None:
    costs = layer_costs([small[0]])
    assert set(costs) == {layer.id for layer in small[0].graph.layers}
    assert all(cost.forward_s > 0 for cost in costs.values())
    assert all(cost.backward_s > 0 and cost.activation_bytes > 0 for name, cost in costs.items() if name != "loss")


@pytest.mark.parametrize("number", range(len(SMALL_CASES)))
def test_peaks_of_runs_are_predicted(small: tuple[RankCosts, list[RunReport]], number: int) -> None:
    costs, reports = small
    plan = SMALL_CASES[number].plan(layers_of(costs.graph), 2)
    for rank, device in enumerate(DEVICES):
        held = next(s.peak_memory_bytes for s in reports[number].stages if s.devices == (device,))
        walked = peak_bytes(plan, costs.graph, costs.bytes, costs.largest_parameter_bytes, rank)
        assert walked == pytest.approx(held, rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("number", range(len(SMALL_CASES)))
def test_runs_have_the_simulated_structure(small: tuple[RankCosts, list[RunReport]], number: int) -> None:
    """The same passes in the same order on every rank; none starts before what it waits for has ended."""
    costs, reports = small
    case, timeline = SMALL_CASES[number], reports[number].timeline
    assert timeline is not None
    problem = problem_of(costs.graph, layer_costs([costs]), FREE, 0.0, case, 2)
    simulated, _ = simulate_plan(problem, case.plan(layers_of(costs.graph), 2))
    spans = [[s for s in lane.spans if s.category == "compute" and "loss" not in s.label] for lane in timeline.lanes]
    wanted = [[s.label for s in lane.spans if s.category == "compute"] for lane in simulated.lanes]
    assert [[span.label for span in lane] for lane in spans] == wanted
    ends = {span.label: span.end_s for lane in spans for span in lane}
    starts = {span.label: span.start_s for lane in spans for span in lane}
    last = len(case.cuts)
    for label in ends:
        stage, kind, microbatch = int(label[0]), label[1], label[2:]
        needs = f"{stage - 1}F{microbatch}" if kind == "F" else f"{stage + 1}{kind}{microbatch}"
        if kind in "FBI" and needs in ends and stage <= last:
            assert starts[label] >= ends[needs]


@pytest.mark.parametrize("number", range(len(SMALL_CASES)))
def test_a_rank_steps_once_after_all_its_passes(small: tuple[RankCosts, list[RunReport]], number: int) -> None:
    """In the run and in the simulation, however many stages the rank has."""
    costs, reports = small
    case, measured = SMALL_CASES[number], reports[number].timeline
    assert measured is not None
    problem = problem_of(costs.graph, layer_costs([costs]), FREE, 0.0, case, 2)
    simulated, _ = simulate_plan(problem, case.plan(layers_of(costs.graph), 2))
    for lane in (*measured.lanes, *simulated.lanes):
        (step,) = (span for span in lane.spans if span.category == "optimizer")
        assert step.start_s >= max(span.end_s for span in lane.spans if span.category == "compute")


def test_torch_and_own_runs_are_told_apart() -> None:
    assert Case(schedule="1f1b", cuts=(5,), executor=TORCH).name == "1f1b 5 x4 torch"
    assert Case(schedule="1f1b", cuts=(3, 5, 7), num_microbatches=8, executor=OWN).name == "1f1b 3,5,7 x8"
