"""The recurrence gives what the engine gives, to the bit: all schedules, chains and graphs, links that several use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schedule_shapes import legal_shapes
from strategies import chain_problem

from planner.cluster import Cluster, Device, DeviceType, Link
from planner.costs.model import CostModel, PricedPlan
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.schedules import SCHEDULES
from planner.simulation.engine import simulate
from planner.simulation.estimate import estimate_plan, simulate_plan
from planner.simulation.makespan import recurrent_makespan_s
from planner.simulation.program import build, running_workers
from planner.verify import verify
from planner.workload import Communication, Inference, Recomputation, ReplicaMode, Training

grid = st.integers(1, 12).map(lambda n: n / 4)
anything = st.floats(0.01, 10.0)
SLOW = [HealthCheck.too_slow]


def seconds_of(draw: st.DrawFn) -> st.SearchStrategy[float]:
    """On a grid, where ties are frequent, or any."""
    return draw(st.sampled_from([grid, grid, anything]))


@st.composite
def graphs(draw: st.DrawFn, count: int) -> LayerGraph:
    """A chain with skips and side outputs, frozen layers and tied ends sometimes."""
    frozen = draw(st.sampled_from([0, 0, 0, 1]))
    layers = tuple(Layer(id=f"L{i}", parameter_bytes=64, trainable=i >= frozen) for i in range(count))
    chains = draw(st.sampled_from([1.0, 1.0, 0.7]))
    edges = []
    for target in range(1, count):
        skips = draw(st.sets(st.integers(0, target - 1), max_size=2)) if chains < 1 else set()
        for source in sorted(skips | {target - 1}):
            moved, back = draw(st.sampled_from([0, 4, 8, 40])), draw(st.integers(0, 9)) > 0
            edges.append(Edge(source=f"L{source}", target=f"L{target}", bytes_per_sample=moved, has_gradient=back))
    tied = ()
    if count > 1 and draw(st.integers(0, 3)) == 0:
        groups = draw(st.sampled_from([((0, count - 1),), ((0, 1),), ((0, count - 1), tuple(range(1, count - 1)))]))
        tied = tuple(
            TiedParameters(layers=tuple(f"L{i}" for i in group), parameter_bytes=draw(st.sampled_from([16, 32])))
            for group in groups
            if len(group) > 1
        )
    return LayerGraph(layers=layers, edges=tuple(edges), tied=tied)


@st.composite
def clusters(draw: st.DrawFn, count: int) -> Cluster:
    """One switch, two joined switches, or a ring; shared links or not, latency or not."""
    bandwidth, latency = draw(st.sampled_from([4.0, 16.0, 100.0, 2.0**30])), draw(st.sampled_from([0.0, 0.25, 0.1]))
    names = [f"d{n}" for n in range(count)]
    match draw(st.sampled_from(["one", "two", "ring"])):
        case "one":
            pairs = [(name, "switch") for name in names] if count > 1 else []
        case "two" if count > 1:
            pairs = [("left", "right"), *((name, ("left", "right")[n % 2]) for n, name in enumerate(names))]
        case _:
            pairs = [(names[n - 1], names[n]) for n in range(1 if count < 3 else 0, count)]
    shared = draw(st.sampled_from([True, True, False]))
    return Cluster(
        device_types=(DeviceType(name="gpu", memory_bytes=2**40),),
        devices=tuple(Device(id=name, type="gpu") for name in names),
        links=tuple(
            Link(a=a, b=b, bandwidth_bytes_per_s=bandwidth, latency_s=latency, shared=shared) for a, b in pairs
        ),
    )


@st.composite
def costs_of(draw: st.DrawFn, graph: LayerGraph) -> Profile:
    """Every figure drawn, split backward passes measured or not."""
    seconds = seconds_of(draw)
    steps, split = draw(st.sampled_from([0.0, 0.25, 3.0, 0.3])), draw(st.booleans())
    costs = {
        layer.id: LayerCost(
            forward_s=draw(seconds),
            backward_s=draw(seconds),
            backward_input_s=draw(seconds) if split else None,
            backward_weight_s=draw(seconds) if split else None,
            activation_bytes=draw(st.integers(0, 9)),
            optimizer_s=steps,
        )
        for layer in graph.layers
    }
    return Profile(device_type="gpu", tables=(CostTable(microbatch_size=1, layers=costs),))


@st.composite
def problems_and_plans(draw: st.DrawFn, name: str) -> tuple[Problem, Plan]:
    """A legal shape of the schedule, one layer per stage, replicas that split microbatches or are dealt them."""
    shape = draw(legal_shapes(name, most_ranks=4))
    mode = draw(st.sampled_from(ReplicaMode)) if name in ("1f1b", "gpipe") else ReplicaMode.SPLIT
    most = min(3, shape.num_microbatches)
    equal = draw(st.sampled_from([1, 1, 2]))
    dealt = mode is ReplicaMode.DEALT
    degrees = [draw(st.integers(1, most)) if dealt else equal for _ in range(shape.pipeline_size)]
    devices = [f"d{n}" for n in range(sum(degrees))]
    left = iter(draw(st.permutations(devices)))
    groups = [tuple((next(left),) for _ in range(degree)) for degree in degrees]
    again = draw(st.sampled_from([Recomputation.NONE, Recomputation.FULL]))
    plan = Plan(
        stages=tuple(
            Stage(layers=(f"L{s}",), replicas=groups[rank], recomputation=again) for s, rank in enumerate(shape.ranks)
        ),
        schedule=name,
        microbatch_size=1 if dealt else equal,
        num_microbatches=shape.num_microbatches,
        schedule_options=shape.options,
        actions=shape.actions,
        replica_mode=mode,
    )
    graph = draw(graphs(shape.num_stages))
    workload: Any = Inference if shape.forward_only else Training
    return Problem(
        graph=graph,
        profiles=(draw(costs_of(graph)),),
        cluster=draw(clusters(len(devices))),
        workload=workload(
            global_batch_size=plan.microbatch_size * plan.num_microbatches,
            communication=draw(st.sampled_from(OVERLAPPED_MOSTLY)),
        ),
    ), plan


OVERLAPPED_MOSTLY = [Communication.OVERLAPPED] * 7 + [Communication.BLOCKING]


def both(problem: Problem, priced: PricedPlan) -> tuple[float | None, float]:
    """What the recurrence says and what the engine says."""
    program = build(problem, priced)
    engine = simulate(program.tasks, program.num_resources).makespan_s
    return recurrent_makespan_s(problem, priced, running_workers(priced)), engine


@pytest.mark.parametrize("name", SCHEDULES.names())
@settings(max_examples=40, suppress_health_check=SLOW)
@given(data=st.data())
def test_the_recurrence_is_the_engine(name: str, data: st.DataObject) -> None:
    problem, plan = data.draw(problems_and_plans(name))
    assert verify(plan, problem) == ()
    recurrence, engine = both(problem, CostModel(problem).price(plan))
    assume(recurrence is not None)
    assert recurrence == engine


@pytest.mark.parametrize("name", SCHEDULES.names())
@settings(max_examples=15, suppress_health_check=SLOW)
@given(data=st.data())
def test_an_estimate_is_that_of_the_timeline(name: str, data: st.DataObject) -> None:
    """Both communications: peaks and busy seconds too, against the engine's spans and accounts."""
    problem, plan = data.draw(problems_and_plans(name))
    timeline, estimate = simulate_plan(problem, plan)
    assert estimate_plan(problem, plan) == estimate
    assert estimate.iteration_time_s == timeline.makespan_s
    assert estimate.peak_memory_bytes == max(lane.peak_memory_bytes for lane in timeline.lanes)
    for lane in timeline.lanes:
        spent = sum(span.end_s - span.start_s for span in lane.spans if span.category == "compute")
        assert lane.busy_s == pytest.approx(spent, rel=1e-12)


def interleaved(replicas: int, **fields: Any) -> tuple[Problem, Plan]:
    """2 ranks of 2 stages, 2 microbatches, F = B = 1 s, a transfer-free chain with large gradients, steps of 0.25 s."""
    problem = chain_problem(
        [(1.0, 1.0)] * 4,
        devices=2 * replicas,
        num_microbatches=2,
        microbatch_size=replicas,
        parameter_bytes=[64] * 4,
        bandwidth=16.0,
        **fields,
    )
    table = problem.profiles[0].tables[0]
    costs = {name: replace(cost, optimizer_s=0.25) for name, cost in table.layers.items()}
    problem = replace(problem, profiles=(replace(problem.profiles[0], tables=(replace(table, layers=costs),)),))
    groups = [tuple((f"d{rank * replicas + n}",) for n in range(replicas)) for rank in range(2)]
    stages = tuple(Stage(layers=(f"L{s}",), replicas=groups[s % 2]) for s in range(4))
    return problem, Plan(stages=stages, schedule="interleaved_1f1b", microbatch_size=replicas, num_microbatches=2)


def test_sums_of_gradients_of_one_worker_follow_each_other() -> None:
    """Passes of half a second end at 4 and 5 s (stages 2, 0) and at 3.5 and 4.5 s (3, 1), see `interleaved_1f1b`; rings
    of two move 64 bytes at 16 B/s in 4 s, one after the other on each rank, and the step of both stages is last."""
    problem, plan = interleaved(2)
    recurrence, engine = both(problem, CostModel(problem).price(plan))
    tails = [
        [(s.label, s.start_s, s.end_s) for s in lane.spans if s.category in ("all_reduce", "optimizer")]
        for lane in simulate_plan(problem, plan)[0].lanes
    ]
    assert tails == [
        [("all-reduce 2", 4.0, 8.0), ("all-reduce 0", 8.0, 12.0), ("optimizer", 12.0, 12.5)],
        [("all-reduce 3", 3.5, 7.5), ("all-reduce 1", 7.5, 11.5), ("optimizer", 11.5, 12.0)],
    ]
    assert recurrence == engine == 12.5


def test_a_step_waits_for_sums_of_tied_gradients() -> None:
    """Passes end at 10 s (stage 0) and 9 s (stage 1, as 3 had at 7 s); the sum of 0 and 3 moves 64 bytes in 4 s."""
    problem, plan = interleaved(1)
    tied = replace(
        problem, graph=replace(problem.graph, tied=(TiedParameters(layers=("L0", "L3"), parameter_bytes=64),))
    )
    recurrence, engine = both(tied, CostModel(tied).price(plan))
    assert [lane.spans[-1].start_s for lane in simulate_plan(tied, plan)[0].lanes] == [14.0, 14.0]
    assert recurrence == engine == 14.5


def test_a_message_waits_for_the_link_of_another() -> None:
    """Two sources of 1 s send 32 bytes each to one device at 16 B/s: its link takes them one after the other."""
    problem = chain_problem(
        [(1.0, 0.0)] * 3, devices=3, num_microbatches=1, parameter_bytes=[0, 0, 4], output_bytes=[0, 0, 0]
    )
    edges = tuple(Edge(source=f"L{s}", target="L2", bytes_per_sample=32) for s in (0, 1))
    links = tuple(replace(link, bandwidth_bytes_per_s=16.0) for link in problem.cluster.links)
    problem = replace(
        problem,
        graph=replace(problem.graph, edges=edges),
        cluster=replace(problem.cluster, links=links),
        workload=Inference(global_batch_size=1),
    )
    stages = tuple(Stage(layers=(f"L{s}",), replicas=((f"d{s}",),)) for s in range(3))
    plan = Plan(stages=stages, schedule="1f1b", microbatch_size=1, num_microbatches=1)
    recurrence, engine = both(problem, CostModel(problem).price(plan))
    assert recurrence == engine == 1.0 + 2.0 + 2.0 + 1.0


def test_where_the_theorem_does_not_hold_the_engine_decides() -> None:
    """Blocking transfers, passes of no time: None, and the estimate all the same."""
    problem, plan = interleaved(1)
    table = problem.profiles[0].tables[0]
    costs = {name: replace(cost, forward_s=0.0) for name, cost in table.layers.items()}
    for other in (
        problem.with_workload(replace(problem.workload, communication=Communication.BLOCKING)),
        replace(problem, profiles=(replace(problem.profiles[0], tables=(replace(table, layers=costs),)),)),
    ):
        recurrence, engine = both(other, CostModel(other).price(plan))
        assert recurrence is None
        assert estimate_plan(other, plan).iteration_time_s == engine > 0


def test_orders_that_wait_for_themselves_have_no_end() -> None:
    """The engine says then which pass never starts."""
    problem, plan = interleaved(1)
    priced = CostModel(problem).price(plan)
    backwards = [replace(worker, order=worker.order[::-1]) for worker in running_workers(priced)]
    assert recurrent_makespan_s(problem, priced, backwards) is None
