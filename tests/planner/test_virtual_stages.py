"""Plans of every schedule, priced and simulated: memory, time, virtual stages, split backward passes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_shapes import legal_shapes, shape_of_ranks
from strategies import chain_problem, quarters, with_weight_pass, words

from planner.costs.model import CostModel
from planner.costs.objective import objective_s
from planner.exporters import ExportContext
from planner.exporters.chrome_trace import trace_document
from planner.exporters.torch_pipelining import torch_document
from planner.options import Objective, SearchModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.schedules import SCHEDULES, PipelineShape, Placement
from planner.simulation.estimate import estimate_plan, simulate_plan
from planner.timeline import Timeline
from planner.verify import verify
from planner.workload import Communication, Recomputation

MODES = (Recomputation.NONE, Recomputation.FULL)


def plan_of(name: str, shape: PipelineShape, **stage: object) -> Plan:
    """Layer s in stage s, on the device of its rank."""
    return Plan(
        stages=tuple(
            Stage(layers=(f"L{s}",), replicas=((f"d{rank}",),), **stage)  # type: ignore[arg-type]
            for s, rank in enumerate(shape.ranks)
        ),
        schedule=name,
        microbatch_size=1,
        num_microbatches=shape.num_microbatches,
        schedule_options=shape.options,
        actions=shape.actions,
    )


@st.composite
def problems_and_plans(draw: st.DrawFn, name: str) -> tuple[Problem, Plan]:
    """Uneven stages, every cost and size on the grid, sometimes transfers, frozen stages and recomputation."""
    shape = draw(legal_shapes(name, training=True, most_ranks=4))
    n = shape.num_stages
    seconds = draw(st.lists(st.tuples(quarters, quarters), min_size=n, max_size=n))
    sizes = [draw(st.lists(words, min_size=n, max_size=n)) for _ in range(3)]
    problem = chain_problem(
        seconds,
        devices=shape.pipeline_size,
        num_microbatches=shape.num_microbatches,
        parameter_bytes=sizes[0],
        output_bytes=sizes[1],
        activation_bytes=sizes[2],
        bandwidth=draw(st.sampled_from([16.0, 2.0**40])),
        workload={"communication": draw(st.sampled_from(Communication))},
    )
    frozen = draw(st.sampled_from([0, 0, 1]))
    layers = tuple(replace(x, trainable=i >= frozen) for i, x in enumerate(problem.graph.layers))
    problem = replace(problem, graph=replace(problem.graph, layers=layers))
    problem = with_weight_pass(problem, draw(st.lists(st.none() | words, min_size=n, max_size=n)))
    return problem, plan_of(name, shape, recomputation=draw(st.sampled_from(MODES)))


@pytest.mark.parametrize("name", SCHEDULES.names())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_simulated_peak_is_the_memory_model(name: str, data: st.DataObject) -> None:
    problem, plan = data.draw(problems_and_plans(name))
    costs = CostModel(problem)
    assert verify(plan, problem, costs) == ()
    timeline, estimate = simulate_plan(problem, plan, costs)
    priced = costs.price(plan)
    for rank, lane in enumerate(timeline.lanes):
        own = [stage for s, stage in enumerate(priced.stages) if plan.rank_of[s] == rank]
        assert lane.devices == (f"d{rank}",)
        assert {lane.peak_memory_bytes} == {stage.memory.total_bytes for stage in own}
    assert estimate.peak_memory_bytes == max(stage.memory.total_bytes for stage in priced.stages)


@pytest.mark.parametrize("name", SCHEDULES.names())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_iteration_is_shorter_than_its_busiest_device(name: str, data: st.DataObject) -> None:
    problem, plan = data.draw(problems_and_plans(name))
    timeline, estimate = simulate_plan(problem, plan)
    assert estimate.iteration_time_s == timeline.makespan_s >= max(lane.busy_s for lane in timeline.lanes)
    for rank, lane in enumerate(timeline.lanes):
        passes = sum(f + b for s, (f, b) in enumerate(seconds_of(problem)) if plan.rank_of[s] == rank)
        assert lane.busy_s == pytest.approx(plan.num_microbatches * passes + again_s(problem, plan, rank))
        own = [s for s in lane.spans if s.category == "compute"]
        assert all(before.end_s <= after.start_s for before, after in pairwise(own))


def seconds_of(problem: Problem) -> list[tuple[float, float]]:
    """Forward and backward of every layer; a frozen first layer runs no backward."""
    costs = problem.profiles[0].tables[0].layers
    runs = problem.index.runs_backward
    return [(costs[x.id].forward_s, costs[x.id].backward_s * runs[i]) for i, x in enumerate(problem.graph.layers)]


def again_s(problem: Problem, plan: Plan, rank: int) -> float:
    """What recomputation adds on a rank: a forward pass with every backward pass."""
    if plan.stages[0].recomputation is Recomputation.NONE:
        return 0.0
    runs = problem.index.runs_backward
    own = [f * runs[s] for s, (f, _) in enumerate(seconds_of(problem)) if plan.rank_of[s] == rank]
    return plan.num_microbatches * sum(own)


def equal_stages(name: str, size: int, microbatches: int, virtual: int | None = None) -> tuple[Problem, Plan]:
    """F = 1 s, B = 2 s on every stage, 8 bytes kept, free transfers."""
    shape = shape_of_ranks(name, size, microbatches, virtual)
    n = shape.num_stages
    problem = chain_problem(
        [(1.0, 2.0)] * n,
        devices=size,
        num_microbatches=microbatches,
        parameter_bytes=[4] * n,
        activation_bytes=[8] * n,
    )
    return problem, plan_of(name, shape)


def simulated(name: str, size: int, microbatches: int, virtual: int | None = None) -> Timeline:
    return simulate_plan(*equal_stages(name, size, microbatches, virtual))[0]


@pytest.mark.parametrize(
    ("size", "microbatches", "virtual", "milliseconds", "over_ideal"),
    [(8, 64, 3, 6633.333, 0.03646), (8, 64, 1, 7100.0, 0.10938)],
)
def test_h11_interleaved_times(
    size: int, microbatches: int, virtual: int, milliseconds: float, over_ideal: float
) -> None:
    """(M + (P - 1) / v) t with t = 100 ms per rank and microbatch (handed case H11)."""
    seconds = simulated("interleaved_1f1b", size, microbatches, virtual).makespan_s * 0.1 / (3 * virtual)
    assert 1000 * seconds == pytest.approx(milliseconds, abs=1e-3)
    assert seconds / (0.1 * microbatches) - 1 == pytest.approx(over_ideal, abs=1e-5)


def test_a_plan_of_an_illegal_size_says_what_is_legal() -> None:
    """H11: P = 6, M = 3, v = 2."""
    problem, plan = equal_stages("interleaved_1f1b", 6, 6, 2)
    few = replace(problem, workload=replace(problem.workload, global_batch_size=3))
    (violation,) = verify(replace(plan, num_microbatches=3), few)
    assert "pipeline size 6, 3 microbatches and 2 virtual stages per rank" in violation.message
    assert "use 6 microbatches" in violation.message


def test_stages_on_one_device_share_its_memory() -> None:
    """Interleaved, 2 ranks of 2 stages, 4 microbatches: rank 0 holds 5 shares of 8 bytes (P v + P - 1), rank 1 3."""
    problem, plan = equal_stages("interleaved_1f1b", 2, 4, 2)
    priced = CostModel(problem).price(plan)
    first, second = priced.stages[0].memory, priced.stages[1].memory
    assert (first.activations_bytes, second.activations_bytes) == (5 * 8, 3 * 8)
    assert (first.weights_bytes, first.gradients_bytes, first.optimizer_bytes) == (8, 8, 16)
    assert priced.stages[2].memory == first
    assert [stage.in_flight for stage in priced.stages] == [4, 3, 2, 1]  # not all at the same time
    tight = replace(first, limit_bytes=first.total_bytes - 1)
    kind = replace(problem.cluster.device_types[0], memory_bytes=tight.limit_bytes)
    small = replace(problem, cluster=replace(problem.cluster, device_types=(kind,)))
    (violation,) = verify(plan, small)
    assert violation.message.startswith(f"stages 0, 2 together need {first.total_bytes} bytes per device")


def test_workspace_is_shared_by_the_stages_of_a_device() -> None:
    problem, plan = equal_stages("interleaved_1f1b", 2, 2, 2)
    table = problem.profiles[0].tables[0]
    space = {f"L{s}": replace(table.layers[f"L{s}"], workspace_bytes=10 * (s + 1)) for s in range(4)}
    profile = replace(problem.profiles[0], tables=(replace(table, layers=space),))
    priced = CostModel(replace(problem, profiles=(profile,))).price(plan)
    assert [stage.memory.workspace_bytes for stage in priced.stages] == [30, 40, 30, 40]


def test_the_period_of_a_device_is_that_of_all_its_stages() -> None:
    problem, plan = equal_stages("interleaved_1f1b", 2, 2, 3)
    priced = CostModel(problem).price(plan)
    assert objective_s(problem, priced, Objective.ITERATION_TIME, SearchModel.CLOSED) == 6 * 3.0 + (2 - 1) * 9.0
    stepping = CostModel(with_steps(problem, [0.5, 1.0] * 3)).price(plan)
    longer = objective_s(problem, stepping, Objective.ITERATION_TIME, SearchModel.CLOSED)
    assert longer == 6 * 3.0 + (2 - 1) * 9.0 + 3 * 1.0
    assert simulate_plan(problem, plan)[1].bottleneck_s == 9.0


def split_problem(**cost: float | None) -> tuple[Problem, Plan]:
    """Two stages under ZB-H1, backward 2 s, with the given split times."""
    problem, plan = equal_stages("zb_h1", 2, 2)
    table = problem.profiles[0].tables[0]
    layers = {name: replace(x, **cost) for name, x in table.layers.items()}  # type: ignore[arg-type]
    profile = replace(problem.profiles[0], tables=(replace(table, layers=layers),))
    return replace(problem, profiles=(profile,)), plan


@pytest.mark.parametrize(
    ("cost", "input_s", "weight_s"),
    [
        ({}, 1.0, 1.0),
        ({"backward_input_s": 1.25, "backward_weight_s": 1.0}, 1.25, 1.0),
        ({"backward_input_s": 0.5, "backward_weight_s": 1.0}, 0.5, 1.5),
        ({"backward_input_s": 0.5}, 0.5, 1.5),
        ({"backward_input_s": 3.0}, 3.0, 0.0),
        ({"backward_weight_s": 0.75}, 1.25, 0.75),
        ({"backward_weight_s": 3.0}, 0.0, 3.0),
    ],
)
def test_split_backward_seconds(cost: dict[str, float], input_s: float, weight_s: float) -> None:
    """Measured parts, together at least the whole; half each where nothing was measured."""
    problem, plan = split_problem(**cost)
    lane = simulate_plan(problem, plan)[0].lanes[1]
    takes = {s.label: s.end_s - s.start_s for s in lane.spans}
    assert (takes["1I0"], takes["1W0"]) == (input_s, weight_s)


def test_nothing_to_train_has_no_weight_gradient() -> None:
    problem, plan = split_problem()
    layers = tuple(replace(x, parameter_bytes=0) for x in problem.graph.layers)
    lane = simulate_plan(replace(problem, graph=replace(problem.graph, layers=layers)), plan)[0].lanes[1]
    takes = {s.label: s.end_s - s.start_s for s in lane.spans}
    assert (takes["1I0"], takes["1W0"]) == (2.0, 0.0)


def test_overhead_is_paid_by_both_parts_and_recomputation_by_the_first() -> None:
    problem, plan = split_problem()
    problem = replace(problem, profiles=(replace(problem.profiles[0], action_overhead_s=0.25),))
    again = replace(plan, stages=tuple(replace(s, recomputation=Recomputation.FULL) for s in plan.stages))
    takes = {s.label: s.end_s - s.start_s for s in simulate_plan(problem, again)[0].lanes[1].spans}
    assert (takes["1F0"], takes["1I0"], takes["1W0"]) == (1.25, 1.0 + 0.25 + 1.0, 1.25)


def test_recomputed_activations_are_held_until_the_weight_gradient() -> None:
    """ZB-H1's last of two stages: 8 bytes again per microbatch between I and W, nothing kept before (no input)."""
    problem, plan = equal_stages("zb_h1", 2, 3)
    full = replace(plan, stages=tuple(replace(s, recomputation=Recomputation.FULL) for s in plan.stages))
    priced = CostModel(problem).price(full)
    # F0 I0 F1 I1 W0: two microbatches recomputed at once, and 8 bytes for the layer being recomputed
    assert priced.stages[1].memory.activations_bytes == 2 * 8 + 8
    assert simulate_plan(problem, full)[0].lanes[1].peak_memory_bytes == priced.stages[1].memory.total_bytes


def test_gradients_are_held_until_the_weight_gradient() -> None:
    """ZB-H1 with four stages of 8 kept bytes each, of which I adds 2, 3, 5 and 7; six microbatches. All hold 4 at most,
    and of these stage s has s + 1 between I and W; the first stage does everything in W and holds nothing more.
    """
    problem, plan = equal_stages("zb_h1", 4, 6)
    priced = CostModel(with_weight_pass(problem, [2, 3, 5, 7])).price(plan)
    assert [s.memory.activations_bytes for s in priced.stages] == [4 * 8, 4 * 8 + 2 * 3, 4 * 8 + 3 * 5, 4 * 8 + 4 * 7]
    assert [s.memory.activations_bytes for s in CostModel(problem).price(plan).stages] == [4 * 8] * 4


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved_1f1b"])
def test_whole_backward_passes_leave_nothing_for_later(name: str) -> None:
    problem, plan = equal_stages(name, 2, 4)
    known = with_weight_pass(problem, [16] * len(plan.stages))
    assert [s.memory for s in CostModel(known).price(plan).stages] == [
        s.memory for s in CostModel(problem).price(plan).stages
    ]


@pytest.mark.parametrize(("communication", "later_s"), [(Communication.OVERLAPPED, 0.0), (Communication.BLOCKING, 1.0)])
def test_stages_on_one_device_hand_over_at_once(communication: Communication, later_s: float) -> None:
    """ZB-V turns on the last rank: stage 1 to stage 2 needs no link. Where transfers block, microbatch 1's arrives."""
    shape = shape_of_ranks("zb_v", 2, 3)
    problem = chain_problem(
        [(1.0, 2.0)] * 4,
        devices=2,
        num_microbatches=3,
        parameter_bytes=[4] * 4,
        output_bytes=[16] * 4,
        bandwidth=16.0,
        workload={"communication": communication},
    )
    timeline, _ = simulate_plan(problem, plan_of("zb_v", shape))
    labels = [s.label for lane in timeline.lanes for s in lane.spans]
    assert "send 0F0 -> 1F0" in labels
    assert "send 2I0 -> 1I0" not in labels
    at = {s.label: s for s in timeline.lanes[1].spans}
    assert at["2F0"].start_s == at["1F0"].end_s + later_s


def test_collectives_of_one_stage_leave_the_device_to_its_other_stages() -> None:
    """Interleaved on 2 x 2 devices: the last stages finish first and sum while the first ones still run backward."""
    shape = shape_of_ranks("interleaved_1f1b", 2, 2, 2)
    problem = chain_problem(
        [(2.0, 4.0)] * 4,
        devices=4,
        num_microbatches=2,
        microbatch_size=2,
        parameter_bytes=[32] * 4,
        bandwidth=16.0,
    )
    plan = plan_of("interleaved_1f1b", shape)
    stages = tuple(
        replace(s, replicas=((f"d{2 * r}",), (f"d{2 * r + 1}",))) for r, s in zip(shape.ranks, plan.stages, strict=True)
    )
    timeline, _ = simulate_plan(problem, replace(plan, stages=stages, microbatch_size=2))
    lane = timeline.lanes[1]
    assert lane.devices == ("d2", "d3")
    reduces = {s.label: s for s in lane.spans if s.category == "all_reduce"}
    last = {n: max(s.end_s for s in lane.spans if s.label.startswith(f"{n}B")) for n in (1, 3)}
    assert reduces["all-reduce 3"].start_s == last[3]
    assert any(s.category == "compute" and s.start_s < reduces["all-reduce 3"].end_s <= s.end_s for s in lane.spans)
    assert reduces["all-reduce 1"].start_s == max(last[1], reduces["all-reduce 3"].end_s)


def with_steps(problem: Problem, steps: list[float]) -> Problem:
    """With these seconds of the optimizer step per layer."""
    table = problem.profiles[0].tables[0]
    costs = {f"L{s}": replace(table.layers[f"L{s}"], optimizer_s=seconds) for s, seconds in enumerate(steps)}
    return replace(problem, profiles=(replace(problem.profiles[0], tables=(replace(table, layers=costs),)),))


def test_a_device_steps_once_after_all_its_passes() -> None:
    """Two ranks of two stages, two microbatches, F = B = 1 s, transfers free. By hand, from what each pass waits for:

        rank 0 | 0F0 0F1 2F0 2F1     2B0     2B1 0B0 0B1          starts 0 1 2 3   5   7 8 9
        rank 1 |     1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1              starts   1 2 3 4 5 6 7 8

    Rank 0 ends its passes at 10 s and steps 0.5 + 0.25 s, rank 1 at 9 s and steps 1 + 2 s: the iteration takes 12 s.
    A step of stage 3 right after 3B1 would hold 1B0 up by 2 s, and with it rank 0: 12.5 s.
    """
    shape = shape_of_ranks("interleaved_1f1b", 2, 2, 2)
    plan = plan_of("interleaved_1f1b", shape)
    problem = with_steps(chain_problem([(1.0, 1.0)] * 4, devices=2, num_microbatches=2), [0.5, 1.0, 0.25, 2.0])
    timeline, estimate = simulate_plan(problem, plan)
    steps = [
        [(s.label, s.start_s, s.end_s) for s in lane.spans if s.category == "optimizer"] for lane in timeline.lanes
    ]
    assert steps == [[("optimizer", 10.0, 10.75)], [("optimizer", 9.0, 12.0)]]
    assert estimate.iteration_time_s == estimate_plan(problem, plan).iteration_time_s == 12.0
    assert [stage.optimizer_s for stage in estimate.stages] == [0.5, 1.0, 0.25, 2.0]


@pytest.mark.parametrize("name", SCHEDULES.names())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_steps_hold_no_pass_up(name: str, data: st.DataObject) -> None:
    """Without replicas every device adds the steps of its stages to the end of its passes, and to nothing else.

    Where transfers block, a send that waits for its reader may come after the step.
    """
    problem, plan = data.draw(problems_and_plans(name))
    problem = problem.with_workload(replace(problem.workload, communication=Communication.OVERLAPPED))
    layers = len(plan.stages)
    steps = data.draw(st.lists(quarters, min_size=layers, max_size=layers))
    lanes = simulate_plan(problem, plan)[0].lanes
    trained = [layer.trainable for layer in problem.graph.layers]
    ends = [
        max(s.end_s for s in lane.spans if s.category == "compute")
        + sum(steps[s] for s, on in enumerate(plan.rank_of) if on == rank and trained[s])
        for rank, lane in enumerate(lanes)
    ]
    assert estimate_plan(with_steps(problem, steps), plan).iteration_time_s == pytest.approx(max(ends))


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_every_schedule_exports(name: str) -> None:
    """Torch's document has one row per rank and names the rank of every stage; the trace one process per rank."""
    virtual = 1 if SCHEDULES[name].placement is Placement.LINE else 2
    problem, plan = equal_stages(name, 2, 4, virtual)
    timeline, _ = simulate_plan(problem, plan)
    document = torch_document(ExportContext(problem=problem, plan=plan, timeline=timeline))
    rows = document["schedule"]["compute_only_csv"].splitlines()
    shape = shape_of_ranks(name, 2, 4, virtual)
    assert rows == [",".join(map(str, w.actions)) for w in SCHEDULES[name].workers(shape)]
    assert tuple(stage["pp_rank"] for stage in document["stages"]) == shape.ranks
    assert [stage["ranks"] for stage in document["stages"]] == [[rank] for rank in shape.ranks]
    assert document["device_mesh"]["mesh_shape"] == [2, 1]
    assert document["device_mesh"]["devices_by_rank"] == ["d0", "d1"]
    events = trace_document(timeline)["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"d0", "d1"}
    printed = {e["name"] for e in events if e["ph"] == "X"}
    assert {str(a) for w in SCHEDULES[name].workers(shape) for a in w.actions} == printed


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ([(("d0",),), (("d1",),), (("d1",),), (("d0",),)], "stage 2 of 4 on rank 0 of 2"),
        ([(("d0",),), (("d1",),), (("d0",), ("d2",)), (("d1",),)], "give virtual stages of one rank the same replicas"),
    ],
)
def test_verify_checks_the_placement(replicas: list[tuple[tuple[str, ...], ...]], message: str) -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=3, num_microbatches=2, microbatch_size=2)
    plan = plan_of("interleaved_1f1b", shape_of_ranks("interleaved_1f1b", 2, 2, 2))
    stages = tuple(replace(s, replicas=own) for s, own in zip(plan.stages, replicas, strict=True))
    found = verify(replace(plan, stages=stages, microbatch_size=2), problem)
    assert len(found) == 1
    assert message in found[0].message


def test_one_stage_per_rank_schedules_refuse_shared_devices() -> None:
    problem, plan = equal_stages("interleaved_1f1b", 2, 2, 2)
    found = verify(replace(plan, schedule="1f1b"), problem)
    assert "device 'd0' is in stage 0 and again in stage 2: use it once" in found[0].message
