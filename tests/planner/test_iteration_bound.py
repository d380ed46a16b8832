"""Bounds on the simulated iteration time: never above the best of all plans, and close where they should be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import MS, L, chain_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import chain_problems, context_of, search_options

from planner import Objective, Problem, Replication, SearchOptions, Status
from planner.bounds import BOUNDS, BoundQuery
from planner.costs.model import CostModel
from planner.optimizers import OPTIMIZERS
from planner.optimizers.base import SearchContext
from planner.service import plan
from planner.simulation.estimate import simulate_plan

MOST_PLANS = 400


def query_of(context: SearchContext) -> BoundQuery:
    return BoundQuery(
        problem=context.problem,
        costs=CostModel(context.problem),
        objective=context.options.objective,
        batches=tuple(context.batches()),
        replication=context.options.replication,
        replica_mode=context.options.replica_mode,
        schedules=context.schedules,
    )


@settings(max_examples=150, deadline=None)
@given(chain_problems(most_layers=4, most_devices=3, most_samples=6), search_options())
def test_no_plan_is_simulated_below_a_bound(problem: Problem, options: SearchOptions) -> None:
    options = replace(options, objective=Objective.ITERATION_TIME, num_finalists=MOST_PLANS)
    context = context_of(problem, options)
    if OPTIMIZERS["exhaustive"].supports(context):
        return
    plans = OPTIMIZERS["exhaustive"].search(context).candidates
    if not plans or len(plans) == MOST_PLANS:
        return
    fastest = min(simulate_plan(problem, c.plan, context.costs)[1].iteration_time_s for c in plans)
    for bound in BOUNDS:
        value = bound.iteration_s(query_of(context))
        assert value is None or value <= fastest * (1 + 1e-9), bound.name


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 8),
    st.sampled_from(["1f1b", "gpipe"]),
)
def test_the_theorem_holds_for_every_division(costs: list[tuple[int, int]], count: int, schedule: str) -> None:
    """One stage per layer, no other division allowed: the theorem's maximum against the simulation."""
    problem = chain_problem([L(f=f, b=b) for f, b in costs], devices=len(costs), microbatches=count)
    options = SearchOptions(num_stages=len(costs), replication=Replication.NONE, schedule=schedule)
    result = plan(problem, options)
    assert result.estimate is not None
    before, least = 0.0, 0.0
    for f, b in costs:
        least = max(least, before + count * (f + b))
        before += f + b
    assert result.estimate.iteration_time_s / MS >= least - 1e-9


@pytest.mark.parametrize("microbatches", [1, 2, 8, 64])
def test_equal_layers_have_their_optimum_proven(microbatches: int) -> None:
    """Without replication the bound of four equal layers on four devices is what 1F1B takes: (M + 3) (F + B)."""
    problem = chain_problem([L(f=1, b=2, p=1)] * 4, devices=4, microbatches=microbatches)
    result = plan(problem, SearchOptions(replication=Replication.NONE))
    assert result.estimate is not None
    assert result.estimate.iteration_time_s / MS == pytest.approx(3 * (microbatches + 3))
    simulated = next(c for c in result.report.certificates if c.quantity == "iteration_time_s")
    assert simulated.gap <= 2e-5


def test_memory_that_forbids_few_stages_raises_the_bound() -> None:
    """Two layers do not fit on one device, so all four devices are needed and two stages cannot be faster."""
    layers = [L(f=1, b=2, p=10)] * 4
    free = plan(chain_problem(layers, devices=4, microbatches=1), SearchOptions(replication=Replication.NONE))
    tight = plan(
        chain_problem(layers, devices=4, microbatches=1, memory=15), SearchOptions(replication=Replication.NONE)
    )
    bounds = [next(c.bound_s for c in r.report.certificates if c.quantity == "iteration_time_s") for r in (free, tight)]
    assert tight.report.status is Status.OPTIMAL
    assert bounds[1] / MS == pytest.approx(12, rel=1e-4)
    assert bounds[0] <= bounds[1] * (1 + 1e-9)
