"""The floor of a setting is no more than any plan's objective, and windows keep every stage below the cap."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from strategies import chain_problems, context_of, search_options

from planner.optimizers._chain_settings import asked_of, setting_of
from planner.optimizers.base import OPTIMIZERS
from planner.optimizers.exhaustive import count_plans
from planner.options import SearchOptions
from planner.problem import Problem

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=150, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(), options=search_options())
def test_no_plan_is_below_the_floor_of_its_setting(problem: Problem, options: SearchOptions) -> None:
    context = context_of(problem, replace(options, num_finalists=1000))
    assume(OPTIMIZERS["chain_dp"].supports(context) == "" and count_plans(context) <= 1_000)
    query = asked_of(context)
    for candidate in OPTIMIZERS["exhaustive"].search(context).candidates:
        plan = candidate.plan
        degrees = tuple(sorted({len(stage.replicas) for stage in plan.stages}))
        batch = (plan.microbatch_size, plan.num_microbatches)
        setting = setting_of(query, batch, degrees, options.num_stages)
        assert setting.floor_s <= candidate.objective_s * (1 + 1e-9)


@settings(max_examples=100, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(), options=search_options())
def test_a_known_plan_changes_only_what_is_searched(problem: Problem, options: SearchOptions) -> None:
    context = context_of(problem, options)
    assume(OPTIMIZERS["chain_dp"].supports(context) == "")
    alone = OPTIMIZERS["chain_dp"].search(context)
    known = OPTIMIZERS["uniform"].search(context).candidates if OPTIMIZERS["uniform"].supports(context) == "" else ()
    after = OPTIMIZERS["chain_dp"].search(replace(context, incumbents=known))
    assert bool(after.candidates) == bool(alone.candidates or known)
    if alone.candidates:
        assert after.candidates[0].objective_s <= alone.candidates[0].objective_s * (1 + 1e-9)
    if alone.exact and alone.candidates:
        assert after.candidates[0].objective_s >= alone.candidates[0].objective_s * (1 - 1e-9)
