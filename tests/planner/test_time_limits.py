"""A search whose time is over before it began still gives a plan that verifies; long simulations are foreseen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.long_graphs import long_chain, problem_of
from planner.costs.model import CostModel
from planner.optimizers import uniform
from planner.optimizers.base import Clock, SearchContext
from planner.options import Objective, SearchOptions
from planner.plan import Plan, Stage
from planner.portfolio import Searched, _until_simulation
from planner.problem import Problem
from planner.service import plan
from planner.simulation.effort import num_tasks, seconds_to_simulate
from planner.simulation.program import build
from planner.verify import verify
from planner.workload import Communication

NUM_DEVICES = 16
PROBLEM = problem_of(long_chain(700), NUM_DEVICES)
TRAINING = problem_of(long_chain(700), NUM_DEVICES, training=True)


def an_equal_split() -> Plan:
    """16 stages on a device each, 256 microbatches."""
    layers = [layer.id for layer in TRAINING.index.layers]
    devices = [device.id for device in TRAINING.cluster.devices]
    bounds = [len(layers) * s // NUM_DEVICES for s in range(NUM_DEVICES + 1)]
    stages = tuple(
        Stage(layers=tuple(layers[a:b]), replicas=((device,),))
        for a, b, device in zip(bounds, bounds[1:], devices, strict=False)
    )
    return Plan(stages=stages, schedule="1f1b", microbatch_size=1, num_microbatches=256)


@pytest.mark.parametrize("name", ["auto", "uniform", "chain_dp", "multilevel", "milp", "ideal_dp", "order_dp"])
def test_a_search_without_time_gives_a_plan(name: str) -> None:
    options = SearchOptions(objective=Objective.THROUGHPUT, optimizer=name, time_limit_s=0.01)
    result = plan(PROBLEM, options)
    assert result.plan is not None
    assert not verify(result.plan, PROBLEM, CostModel(PROBLEM))
    assert result.report.bound_s is not None
    assert result.report.objective_s is not None
    assert result.report.bound_s <= result.report.objective_s


@pytest.mark.parametrize("name", ["auto", "uniform", "chain_dp", "multilevel", "milp"])
def test_so_does_one_for_training(name: str) -> None:
    result = plan(TRAINING, SearchOptions(optimizer=name, time_limit_s=0.01))
    assert result.plan is not None
    assert not verify(result.plan, TRAINING, CostModel(TRAINING))


def test_an_equal_split_tries_only_degrees_that_divide_the_microbatch() -> None:
    context = SearchContext(
        problem=PROBLEM, options=SearchOptions(), costs=CostModel(PROBLEM), clock=Clock(0.0), incumbents=()
    )
    shapes = uniform._shapes(context, uniform.listed_groups(PROBLEM))
    assert [stages for _, _, stages in shapes] == [NUM_DEVICES]


def test_grace_is_time_after_the_limit() -> None:
    clock = Clock(0.0)
    assert clock.expired()
    assert clock.left_s() == 0.0
    assert 0.0 < clock.left_s(60.0) <= 60.0


def test_blocking_transfers_take_longer_to_simulate() -> None:
    split, overlapped = an_equal_split(), replace(TRAINING.workload, communication=Communication.OVERLAPPED)
    slow = seconds_to_simulate(TRAINING, split)
    assert slow == pytest.approx(4 * seconds_to_simulate(TRAINING.with_workload(overlapped), split))


@pytest.mark.parametrize("problem", [PROBLEM, TRAINING])
def test_what_is_simulated_is_counted_before(problem: Problem) -> None:
    split = an_equal_split()
    tasks = build(problem, CostModel(problem).price(split)).tasks
    assert num_tasks(problem, split) == sum(task.category in ("compute", "transfer") for task in tasks)


def test_a_search_ends_early_enough_to_simulate_what_it_found() -> None:
    context = SearchContext(
        problem=TRAINING, options=SearchOptions(), costs=CostModel(TRAINING), clock=Clock(1000.0), incumbents=()
    )
    searched = Searched(context=context, floor_s=0.0)
    before = _until_simulation(context, [searched])
    searched.outcomes["uniform"] = uniform.Uniform().search(context)
    best = searched.outcomes["uniform"].candidates[0].plan
    takes = seconds_to_simulate(TRAINING, best)
    assert before == float("inf")
    assert takes < 1000.0 - _until_simulation(context, [searched]) + 0.7 < takes + 60.0
