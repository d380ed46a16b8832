"""Recomputation per virtual stage: as few seconds as memory allows, against all choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from strategies import chain_problem, search

from planner.costs.model import CostModel
from planner.optimizers._virtual_levels import uniform_pipeline_s
from planner.options import Decision, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.estimate import simulate_plan
from planner.verify import priced_and_verified
from planner.workload import Recomputation

INTERLEAVED = SearchOptions(schedule="interleaved_1f1b", num_stages=8, searched=(Decision.RECOMPUTATION,))


def problem(memory_bytes: int) -> Problem:
    """Eight equal layers on two devices, four microbatches."""
    return chain_problem(
        [(1.0, 2.0)] * 8,
        devices=2,
        num_microbatches=4,
        parameter_bytes=[4] * 8,
        output_bytes=[8] * 8,
        activation_bytes=[100] * 8,
        memory_bytes=memory_bytes,
    )


def busiest_s(plan: Plan, given: Problem) -> float:
    """Seconds of one microbatch on the busiest device."""
    costs = CostModel(given)
    priced, _ = priced_and_verified(plan, given, costs)
    assert priced is not None
    passes = [float(stage.seconds.forward_s + stage.seconds.backward_s) for stage in priced.stages]
    return max(sum(passes[0::2]), sum(passes[1::2]))


def fits(plan: Plan, given: Problem) -> bool:
    priced, wrong = priced_and_verified(plan, given, CostModel(given))
    return priced is not None and not wrong


def least_s(plan: Plan, given: Problem) -> float:
    """Of all choices with the plan's cuts."""
    choices = (
        replace(plan, stages=tuple(replace(s, recomputation=kind) for s, kind in zip(plan.stages, kinds, strict=True)))
        for kinds in product((Recomputation.NONE, Recomputation.FULL), repeat=len(plan.stages))
    )
    return min(busiest_s(choice, given) for choice in choices if fits(choice, given))


@pytest.mark.parametrize("memory_bytes", [400, 600, 800, 1000])
def test_as_few_stages_recompute_as_memory_allows(memory_bytes: int) -> None:
    given = problem(memory_bytes)
    candidates = search("virtual_stages", given, INTERLEAVED).candidates
    assert candidates
    plan = candidates[0].plan
    assert busiest_s(plan, given) == pytest.approx(least_s(plan, given))


def test_stages_of_one_device_recompute_or_not() -> None:
    plan = search("virtual_stages", problem(700), INTERLEAVED).candidates[0].plan
    kinds = [{stage.recomputation for stage in plan.stages[rank::2]} for rank in (0, 1)]
    assert {Recomputation.NONE, Recomputation.FULL} in kinds
    mixed = simulate_plan(problem(700), plan)[1].iteration_time_s
    alike = replace(plan, stages=tuple(replace(s, recomputation=Recomputation.FULL) for s in plan.stages))
    assert mixed < simulate_plan(problem(700), alike)[1].iteration_time_s


def test_a_model_that_never_fits_has_no_plan() -> None:
    assert not search("virtual_stages", problem(100), INTERLEAVED).candidates


def test_the_estimate_is_the_published_formula() -> None:
    """Narayanan et al. 2021, section 2.2: m (t_f + t_b) + (p - 1) (t_f + t_b) / v, per device."""
    assert uniform_pipeline_s(8, 4, 8, 12.0) == pytest.approx((8 * 3.0) + (4 - 1) * 3.0 / 2)
