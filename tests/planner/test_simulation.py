"""The simulator against closed forms, vectors of the literature, and hand-drawn timelines."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import chain_problem, chain_problems, context_of, search_options

from planner.costs.model import CostModel
from planner.errors import InternalError
from planner.graph import TiedParameters
from planner.optimizers.base import OPTIMIZERS
from planner.options import SearchOptions
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.engine import Task, simulate
from planner.simulation.estimate import simulate_plan
from planner.timeline import Lane, Span, Timeline
from planner.workload import Communication, ReplicaMode


def one_layer_per_stage(
    problem: Problem, schedule: str, *, replicas: list[int] | None = None, mode: ReplicaMode = ReplicaMode.SPLIT
) -> Plan:
    """Layer s in stage s, devices in order."""
    names = [layer.id for layer in problem.graph.layers]
    devices = iter(device.id for device in problem.cluster.devices)
    size = problem.workload.microbatch_size or 1
    return Plan(
        stages=tuple(
            Stage(layers=(name,), replicas=tuple((next(devices),) for _ in range(degree)))
            for name, degree in zip(names, replicas or [1] * len(names), strict=True)
        ),
        schedule=schedule,
        microbatch_size=size,
        num_microbatches=problem.workload.global_batch_size // size,
        replica_mode=mode,
    )


def makespan(problem: Problem, schedule: str) -> float:
    """Simulated seconds with one layer per stage."""
    return simulate_plan(problem, one_layer_per_stage(problem, schedule))[0].makespan_s


def spans(lane: Lane) -> list[tuple[str, float, float]]:
    """Label, start and end of everything on a lane."""
    return [(s.label, s.start_s, s.end_s) for s in lane.spans]


def the_span(timeline: Timeline, label: str) -> Span:
    """The first span with this label."""
    return next(s for lane in timeline.lanes for s in lane.spans if s.label == label)


@settings(max_examples=60)
@given(
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    forward=st.integers(1, 8).map(lambda n: n / 4),
    backward=st.integers(1, 8).map(lambda n: n / 4),
)
def test_uniform_pipelines_take_the_closed_form(
    stages: int, microbatches: int, forward: float, backward: float
) -> None:
    problem = chain_problem(
        [(forward, backward)] * stages, devices=stages, num_microbatches=microbatches, activation_bytes=[8] * stages
    )
    for schedule in ("gpipe", "1f1b"):
        timeline, estimate = simulate_plan(problem, one_layer_per_stage(problem, schedule))
        assert timeline.makespan_s == (microbatches + stages - 1) * (forward + backward)
        bubble = (stages - 1) / (microbatches + stages - 1)
        assert timeline.bubble_fraction == pytest.approx(bubble, abs=1e-12)
        for s, lane in enumerate(timeline.lanes):
            assert lane.peak_in_flight == (microbatches if schedule == "gpipe" else min(microbatches, stages - s))
            assert lane.busy_s == microbatches * (forward + backward)
        assert estimate.throughput_samples_per_s == microbatches / timeline.makespan_s


@pytest.mark.parametrize(
    ("forward", "backward", "microbatches", "one_f_one_b", "gpipe"),
    [
        ([1, 1, 1, 1], [2, 2, 2, 2], 8, 33, 33),
        ([1, 2, 1], [2, 4, 2], 4, 28, 30),
        ([3, 1, 1, 2], [6, 2, 2, 4], 8, 75, 84),
        ([1, 3, 2, 1], [2, 5, 4, 2], 6, 55, 60),
    ],
)
def test_vectors_of_the_dapple_simulation(
    forward: list[int], backward: list[int], microbatches: int, one_f_one_b: int, gpipe: int
) -> None:
    """Makespans of an independent exact simulation (papers review, section 3.3)."""
    seconds = [(float(f), float(b)) for f, b in zip(forward, backward, strict=True)]
    problem = chain_problem(seconds, devices=len(seconds), num_microbatches=microbatches)
    assert makespan(problem, "1f1b") == one_f_one_b
    assert makespan(problem, "gpipe") == gpipe


def two_stages(communication: Communication, **fields: object) -> Problem:
    """F = 1, B = 2 on both stages, transfers of 8 bytes in 0.5 s (and 0.25 s latency where asked for)."""
    return chain_problem(
        [(1.0, 2.0), (1.0, 2.0)],
        devices=2,
        num_microbatches=2,
        parameter_bytes=[4, 4],
        output_bytes=[8, 0],
        bandwidth=16.0,
        workload={"communication": communication},
        **fields,  # type: ignore[arg-type]
    )


def test_overlapped_transfers_delay_only_their_reader() -> None:
    problem = two_stages(Communication.OVERLAPPED)
    timeline, _ = simulate_plan(problem, one_layer_per_stage(problem, "gpipe"))
    assert spans(timeline.lanes[0]) == [
        ("0F0", 0.0, 1.0),
        ("send 0F0 -> 1F0", 1.0, 1.5),
        ("0F1", 1.0, 2.0),
        ("send 0F1 -> 1F1", 2.0, 2.5),
        ("0B0", 6.0, 8.0),
        ("0B1", 8.0, 10.0),
    ]
    assert spans(timeline.lanes[1]) == [
        ("1F0", 1.5, 2.5),
        ("1F1", 2.5, 3.5),
        ("1B0", 3.5, 5.5),
        ("send 1B0 -> 0B0", 5.5, 6.0),
        ("1B1", 5.5, 7.5),
        ("send 1B1 -> 0B1", 7.5, 8.0),
    ]


def test_blocking_transfers_occupy_both_stages() -> None:
    problem = two_stages(Communication.BLOCKING)
    timeline, _ = simulate_plan(problem, one_layer_per_stage(problem, "gpipe"))
    assert spans(timeline.lanes[0]) == [
        ("0F0", 0.0, 1.0),
        ("send 0F0 -> 1F0", 1.0, 1.5),
        ("0F1", 1.5, 2.5),
        ("send 0F1 -> 1F1", 2.5, 3.0),
        ("send 1B0 -> 0B0", 6.0, 6.5),
        ("0B0", 6.5, 8.5),
        ("send 1B1 -> 0B1", 8.5, 9.0),
        ("0B1", 9.0, 11.0),
    ]
    for lane in timeline.lanes:
        for before, after in pairwise(lane.spans):
            assert before.end_s <= after.start_s


def test_latency_delays_and_occupies_nothing_when_overlapped() -> None:
    problem = two_stages(Communication.OVERLAPPED, latency_s=1.0)
    timeline, _ = simulate_plan(problem, one_layer_per_stage(problem, "gpipe"))
    first, second = the_span(timeline, "send 0F0 -> 1F0"), the_span(timeline, "send 0F1 -> 1F1")
    assert (first.start_s, first.end_s) == (1.0, 2.5)
    assert (second.start_s, second.end_s) == (2.0, 3.5)


def test_a_shared_link_carries_one_transfer_at_a_time() -> None:
    """Transfers of 2 s follow forwards of 1 s: the second waits for the link."""
    problem = chain_problem(
        [(1.0, 0.0), (1.0, 0.0)],
        devices=2,
        num_microbatches=2,
        parameter_bytes=[0, 4],
        output_bytes=[32, 0],
        bandwidth=16.0,
    )
    timeline, _ = simulate_plan(problem, one_layer_per_stage(problem, "gpipe"))
    assert the_span(timeline, "send 0F0 -> 1F0").end_s == 3.0
    assert the_span(timeline, "send 0F1 -> 1F1").start_s == 3.0
    links = tuple(replace(link, shared=False) for link in problem.cluster.links)
    free = replace(problem, cluster=replace(problem.cluster, links=links))
    timeline, _ = simulate_plan(free, one_layer_per_stage(free, "gpipe"))
    assert the_span(timeline, "send 0F1 -> 1F1").start_s == 3.0  # the pair of devices is still one


def test_all_reduce_starts_after_the_stages_own_last_backward() -> None:
    """Two stages of two replicas: stage 1 finishes its backwards first and need not wait for stage 0."""
    problem = chain_problem(
        [(1.0, 2.0), (1.0, 2.0)],
        devices=4,
        num_microbatches=2,
        microbatch_size=2,
        parameter_bytes=[16, 32],
        output_bytes=[0, 0],
        bandwidth=16.0,
    )
    timeline, estimate = simulate_plan(problem, one_layer_per_stage(problem, "1f1b", replicas=[2, 2]))
    # per replica half a microbatch: F = 0.5, B = 1; ring of two: 2 (2-1)/2 bytes / 16 B/s
    last = {s: max(x.end_s for x in lane.spans if "B" in x.label) for s, lane in enumerate(timeline.lanes)}
    reduces = [next(x for x in lane.spans if x.label == "all-reduce") for lane in timeline.lanes]
    assert [x.start_s for x in reduces] == [last[0], last[1]]
    assert [x.end_s - x.start_s for x in reduces] == [1.0, 2.0]
    assert last[1] < last[0]
    assert [s.all_reduce_s for s in estimate.stages] == [1.0, 2.0]
    assert timeline.makespan_s == max(last[0] + 1.0, last[1] + 2.0)


def test_optimizer_steps_and_tied_sums_come_last() -> None:
    problem = chain_problem(
        [(1.0, 2.0), (1.0, 2.0)], devices=2, num_microbatches=1, parameter_bytes=[16, 16], bandwidth=16.0
    )
    table = problem.profiles[0].tables[0]
    steps = {name: replace(cost, optimizer_s=0.25) for name, cost in table.layers.items()}
    tied = Problem(
        graph=replace(problem.graph, tied=(TiedParameters(layers=("L0", "L1"), parameter_bytes=16),)),
        profiles=(replace(problem.profiles[0], tables=(replace(table, layers=steps),)),),
        cluster=problem.cluster,
        workload=problem.workload,
    )
    timeline, _ = simulate_plan(tied, one_layer_per_stage(tied, "1f1b"))
    assert spans(timeline.lanes[0])[-3:] == [
        ("0B0", 4.0, 6.0),
        ("tied all-reduce", 6.0, 7.0),
        ("optimizer", 7.0, 7.25),
    ]
    assert spans(timeline.lanes[1])[-2:] == [("tied all-reduce", 6.0, 7.0), ("optimizer", 7.0, 7.25)]
    assert timeline.makespan_s == 7.25


def test_dealt_replicas_take_turns() -> None:
    """Three replicas of a stage of 3 s feed a stage of 1 s (PipeDream's 3 + 1)."""
    problem = chain_problem([(1.0, 2.0), (0.25, 0.75)], devices=4, num_microbatches=6, activation_bytes=[4, 4])
    plan = one_layer_per_stage(problem, "1f1b", replicas=[3, 1], mode=ReplicaMode.DEALT)
    timeline, _ = simulate_plan(problem, plan)
    assert len(timeline.lanes) == 4
    for replica, lane in enumerate(timeline.lanes[:3]):
        assert lane.devices == (f"d{replica}",)
        assert {s.label[2:] for s in lane.spans if "0F" in s.label} == {str(replica), str(replica + 3)}
        assert lane.busy_s == 2 * 3.0
        assert lane.peak_in_flight == 2
    assert timeline.lanes[3].busy_s == 6 * 1.0
    assert timeline.makespan_s >= 6.0


def test_a_stage_without_backward_sends_no_gradient() -> None:
    problem = chain_problem(
        [(1.0, 2.0), (1.0, 2.0)],
        devices=2,
        num_microbatches=2,
        parameter_bytes=[4, 4],
        output_bytes=[16, 0],
        bandwidth=16.0,
    )
    layers = (replace(problem.graph.layers[0], trainable=False), problem.graph.layers[1])
    frozen = replace(problem, graph=replace(problem.graph, layers=layers))
    timeline, _ = simulate_plan(frozen, one_layer_per_stage(frozen, "1f1b"))
    assert not [s for lane in timeline.lanes for s in lane.spans if "0B" in s.label]
    assert timeline.lanes[0].busy_s == 2.0


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problem=chain_problems(most_layers=5), options=search_options())
def test_simulated_peak_memory_equals_the_memory_model(problem: Problem, options: SearchOptions) -> None:
    context = context_of(problem, replace(options, num_finalists=4))
    for name in ("chain_dp", "uniform"):
        if OPTIMIZERS[name].supports(context):
            continue
        for candidate in OPTIMIZERS[name].search(context).candidates:
            plan, costs = candidate.plan, context.costs
            timeline, estimate = simulate_plan(problem, plan, costs)
            priced = costs.price(plan)
            stage_of = {d: s for s, stage in enumerate(plan.stages) for g in stage.replicas for d in g}
            for lane in timeline.lanes:
                stage = priced.stages[stage_of[lane.devices[0]]]
                assert lane.peak_memory_bytes <= stage.memory.total_bytes
                if stage.parts.runs_backward:
                    assert lane.peak_memory_bytes <= stage.memory.limit_bytes
            peaks = [
                max(lane.peak_memory_bytes for lane in timeline.lanes if stage_of[lane.devices[0]] == s)
                for s in range(len(plan.stages))
            ]
            assert peaks == [stage.memory.total_bytes for stage in priced.stages]
            assert estimate.peak_memory_bytes == max(peaks)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problem=chain_problems(most_layers=5), options=search_options())
def test_lanes_run_one_thing_at_a_time(problem: Problem, options: SearchOptions) -> None:
    context = context_of(problem, replace(options, num_finalists=2))
    for candidate in OPTIMIZERS["exhaustive"].search(context).candidates:
        timeline, _ = simulate_plan(problem, candidate.plan, context.costs)
        for lane in timeline.lanes:
            own = [s for s in lane.spans if s.category != "transfer"]
            for before, after in pairwise(own):
                assert before.end_s <= after.start_s


def test_a_program_that_waits_for_itself_is_our_fault() -> None:
    tasks = [
        Task(label="a", category="compute", seconds=1.0, needs=[1]),
        Task(label="b", category="compute", seconds=1.0, needs=[0]),
    ]
    with pytest.raises(InternalError, match="stuck: 2 tasks never start, the first is 'a'"):
        simulate(tasks, 0)


def test_dispatch_decides_which_waiting_task_is_next() -> None:
    """Two tasks of one queue: fixed order waits for the first, another rule takes the one that is ready."""
    tasks = [
        Task(label="slow", category="transfer", seconds=5.0),
        Task(label="first", category="compute", seconds=1.0, resources=(0,), queue=0, needs=[0]),
        Task(label="second", category="compute", seconds=1.0, resources=(0,), queue=0),
    ]
    assert simulate(tasks, 1).makespan_s == 7.0
    arrival = simulate(tasks, 1, dispatch=lambda waiting, ready: next((n for n in waiting if ready[n]), None))
    assert arrival.makespan_s == 6.0
    assert arrival.start_s == [0.0, 5.0, 0.0]


def test_memory_accounts_keep_their_peak() -> None:
    tasks = [
        Task(label="a", category="compute", seconds=1.0, resources=(0,), queue=0, account=0, acquire=8),
        Task(label="b", category="compute", seconds=1.0, resources=(0,), queue=0, account=0, acquire=4, release=12),
        Task(label="c", category="compute", seconds=1.0, resources=(0,), queue=0, account=0, acquire=2),
    ]
    assert simulate(tasks, 1).peak_bytes == {0: 12}


def test_the_cost_model_is_made_when_none_is_given() -> None:
    problem = chain_problem([(1.0, 2.0)], devices=1, num_microbatches=1)
    plan = one_layer_per_stage(problem, "1f1b")
    assert simulate_plan(problem, plan) == simulate_plan(problem, plan, CostModel(problem))
