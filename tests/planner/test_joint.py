"""The joint search: tensor degree, ZeRO stage and recomputation together, against trying every choice by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from strategies import RELATIVE, chain_problems, context_of, search_options

from planner.joint import SEARCHED_ZERO, levels_of, tensor_degrees, variants
from planner.optimizers.base import OPTIMIZERS, SearchContext, refusal
from planner.optimizers.exhaustive import count_plans
from planner.options import Decision, Objective, SearchOptions
from planner.problem import Problem
from planner.profile import CostTable, LayerCost
from planner.result import Status
from planner.service import plan
from planner.simulation.estimate import simulate_plan
from planner.verify import verify
from planner.workload import Recomputation, Training

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
EVERYTHING = tuple(Decision)
FEW = 4_000


@st.composite
def joint_problems(draw: st.DrawFn) -> Problem:
    """Small chains in training, with costs at tensor degrees 1 and 2 (the latter a little less than half)."""
    problem = draw(chain_problems(most_layers=3, most_devices=3, most_samples=4))
    assume(isinstance(problem.workload, Training))
    return replace(
        problem,
        profiles=tuple(replace(p, tables=(*p.tables, *map(_halved, p.tables))) for p in problem.profiles),
        workload=replace(problem.workload, tensor=1, zero=0, recomputation=Recomputation.NONE),
    )


def _halved(table: CostTable) -> CostTable:
    def half(cost: LayerCost) -> LayerCost:
        return replace(
            cost,
            forward_s=0.625 * cost.forward_s,
            backward_s=0.5 * cost.backward_s,
            activation_bytes=cost.activation_bytes // 2,
        )

    return replace(table, tensor=2, layers={name: half(cost) for name, cost in table.layers.items()})


def _contexts(problem: Problem, options: SearchOptions) -> list[SearchContext]:
    """One context per variant that the oracle can enumerate."""
    contexts = [context_of(each, options) for each in variants(problem, options)]
    usable = [context for context in contexts if not refusal(OPTIMIZERS["exhaustive"], context)]
    assume(sum(map(count_plans, usable)) <= FEW)
    return usable


@settings(max_examples=80, suppress_health_check=SLOW_DRAWS)
@given(problem=joint_problems(), options=search_options())
def test_levels_chosen_inside_the_recurrence_are_the_oracles(problem: Problem, options: SearchOptions) -> None:
    options = replace(options, searched=(Decision.ZERO, Decision.RECOMPUTATION))
    context = context_of(problem, options)
    assume(count_plans(context) <= FEW)
    oracle, found = (OPTIMIZERS[name].search(context) for name in ("exhaustive", "chain_dp"))
    values = [o.candidates[0].objective_s if o.candidates else math.inf for o in (oracle, found)]
    event(f"exact: {found.exact}")
    assert values[1] >= values[0] * (1 - RELATIVE)
    if found.exact:
        assert values[1] <= values[0] + RELATIVE * max(1.0, values[0]) or values[0] == math.inf
    for candidate in found.candidates[:1]:
        assert verify(candidate.plan, problem) == ()


@settings(max_examples=40, suppress_health_check=SLOW_DRAWS)
@given(problem=joint_problems(), options=search_options())
def test_the_joint_search_is_the_best_of_its_variants(problem: Problem, options: SearchOptions) -> None:
    options = replace(options, searched=EVERYTHING)
    outcomes = [OPTIMIZERS["exhaustive"].search(context) for context in _contexts(problem, options)]
    oracle = min((o.candidates[0].objective_s for o in outcomes if o.candidates), default=math.inf)
    result = plan(problem, options)
    if oracle == math.inf:
        assert result.plan is None
        return
    assert result.report.status is not Status.INFEASIBLE
    assert result.report.bound_s is None or result.report.bound_s <= oracle * (1 + RELATIVE)
    if result.plan is not None:
        assert verify(result.plan, problem) == ()
        assert result.report.objective_s is not None
        assert result.report.objective_s >= oracle * (1 - RELATIVE)


@settings(max_examples=40, suppress_health_check=SLOW_DRAWS)
@given(problem=joint_problems(), options=search_options())
def test_no_plan_of_any_variant_is_simulated_below_the_bound(problem: Problem, options: SearchOptions) -> None:
    options = replace(options, searched=EVERYTHING, objective=Objective.ITERATION_TIME, num_finalists=1000)
    contexts = _contexts(problem, options)
    result = plan(problem, options)
    proven = [c for c in result.report.certificates if c.quantity == "iteration_time_s"]
    for context in contexts:
        for candidate in OPTIMIZERS["exhaustive"].search(context).candidates:
            seconds = simulate_plan(problem, candidate.plan)[0].makespan_s
            applies = [c for c in proven if "under" not in c.scope or c.scope.endswith(candidate.plan.schedule)]
            assert all(c.bound_s <= seconds * (1 + RELATIVE) for c in applies)


@settings(max_examples=40, suppress_health_check=SLOW_DRAWS)
@given(problem=joint_problems(), options=search_options())
def test_searching_a_decision_is_never_worse_than_giving_it(problem: Problem, options: SearchOptions) -> None:
    free = plan(problem, replace(options, searched=EVERYTHING))
    assume(free.report.status is Status.OPTIMAL)
    assert free.report.objective_s is not None
    for tensor, zero, recomputation in product((1, 2), SEARCHED_ZERO, Recomputation):
        if tensor > len(problem.cluster.devices):
            continue
        assert isinstance(problem.workload, Training)
        workload = replace(problem.workload, tensor=tensor, zero=zero, recomputation=recomputation)
        given_plan = plan(problem.with_workload(workload), options)
        if given_plan.report.objective_s is not None:
            assert free.report.objective_s <= given_plan.report.objective_s * (1 + RELATIVE)


def test_degrees_without_costs_are_not_searched() -> None:
    problem = replace_tables(tensors=(1, 4))
    assert tensor_degrees(problem) == [1, 4]
    assert [each.workload.tensor for each in variants(problem, SearchOptions(searched=(Decision.TENSOR,)))] == [1, 4]
    assert [each.workload.tensor for each in variants(problem, SearchOptions())] == [1]


def test_levels_are_those_of_the_workload_unless_they_are_searched() -> None:
    workload = Training(global_batch_size=1, zero=2, recomputation=Recomputation.FULL)
    assert [(x.recomputation, x.zero) for x in levels_of(workload, SearchOptions())] == [(Recomputation.FULL, 2)]
    both = levels_of(workload, SearchOptions(searched=(Decision.ZERO, Decision.RECOMPUTATION)))
    assert len(both) == len(SEARCHED_ZERO) * len(Recomputation)
    assert all(level.reshard for level in both)
    more = levels_of(workload, SearchOptions(searched=(Decision.ZERO, Decision.RECOMPUTATION, Decision.RESHARD)))
    assert len(more) == (len(SEARCHED_ZERO) + 1) * len(Recomputation)
    assert [level.reshard for level in more if level.zero == 3] == [False, True] * len(Recomputation)
    assert (both[0].recomputation, both[0].zero) == (Recomputation.NONE, 0)


def replace_tables(tensors: tuple[int, ...]) -> Problem:
    """A chain with a cost table per tensor degree, on eight devices."""
    from strategies import chain_problem

    problem = chain_problem([(1.0, 2.0)] * 4, devices=8, num_microbatches=4)
    tables = problem.profiles[0].tables
    return replace(
        problem,
        profiles=(replace(problem.profiles[0], tables=tuple(replace(t, tensor=d) for t in tables for d in tensors)),),
    )


@settings(max_examples=40, suppress_health_check=SLOW_DRAWS)
@given(problem=joint_problems(), options=search_options())
def test_auto_is_never_worse_than_a_schedule_that_it_tries(problem: Problem, options: SearchOptions) -> None:
    options = replace(options, objective=Objective.ITERATION_TIME, schedule="auto")
    auto = plan(problem, options)
    for schedule in context_of(problem, options).schedules:
        alone = plan(problem, replace(options, schedule=schedule))
        if alone.estimate is not None:
            assert auto.estimate is not None
            assert auto.estimate.iteration_time_s <= alone.estimate.iteration_time_s * (1 + RELATIVE)
