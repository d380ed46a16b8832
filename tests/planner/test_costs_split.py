"""Seconds of split backward passes, stage by stage, by hand: forward 1 s, backward 2 s, or 1.25 s and 1 s in two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_virtual_stages import equal_stages, split_problem

from planner.costs.model import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.estimate import simulate_plan
from planner.workload import Recomputation


def frozen(problem: Problem, count: int) -> Problem:
    """The first layers are not trained."""
    layers = tuple(replace(layer, trainable=i >= count) for i, layer in enumerate(problem.graph.layers))
    return replace(problem, graph=replace(problem.graph, layers=layers))


def measured(problem: Problem, overhead_s: float = 0.0) -> Problem:
    """With measured parts of the backward pass, and seconds for each pass of a stage."""
    table = problem.profiles[0].tables[0]
    layers = {name: replace(cost, backward_input_s=1.25, backward_weight_s=1.0) for name, cost in table.layers.items()}
    tables = (replace(table, layers=layers),)
    return replace(problem, profiles=(replace(problem.profiles[0], tables=tables, action_overhead_s=overhead_s),))


def recomputing(plan: Plan) -> Plan:
    """The plan with full recomputation."""
    return replace(plan, stages=tuple(replace(s, recomputation=Recomputation.FULL) for s in plan.stages))


def parts_of(problem: Problem, plan: Plan) -> list[tuple[float, float]]:
    """I and W of every stage."""
    return [(s.split.input_s, s.split.weight_s) for s in CostModel(problem).price(plan).stages]


def test_the_first_stage_has_nothing_to_do_for_input_gradients() -> None:
    """Split parts take 1.25 + 1 s, the whole 2 s: the first stage runs the whole in W."""
    problem, plan = split_problem(backward_input_s=1.25, backward_weight_s=1.0)
    first, second = simulate_plan(problem, plan)[0].lanes
    takes = {span.label: span.end_s - span.start_s for lane in (first, second) for span in lane.spans}
    assert (takes["0I0"], takes["0W0"]) == (0.0, 2.0)
    assert (takes["1I0"], takes["1W0"]) == (1.25, 1.0)


def test_an_iteration_ends_with_the_whole_pass_of_the_first_stage() -> None:
    """F and F, I of the second stage until 3.25 s, then 2 s; as two parts they would end at 5.5 s."""
    problem, plan = equal_stages("zb_h1", 2, 1)
    assert simulate_plan(measured(problem), plan)[0].makespan_s == 5.25


def test_of_virtual_stages_only_the_first_has_none() -> None:
    """Ranks run stages 0 and 3, 1 and 2; the turn at the end is inside a rank, and still a gradient."""
    problem, plan = equal_stages("zb_v", 2, 4)
    assert parts_of(measured(problem), plan) == [(0.0, 2.0), (1.25, 1.0), (1.25, 1.0), (1.25, 1.0)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [(0.0, 0.0), (0.0, 2.0), (1.25, 1.0), (1.25, 1.0)]),
        (2, [(0.0, 0.0), (0.0, 0.0), (0.0, 2.0), (1.25, 1.0)]),
    ],
)
def test_nothing_goes_back_to_frozen_layers(count: int, expected: list[tuple[float, float]]) -> None:
    problem, plan = equal_stages("zb_v", 2, 4)
    assert parts_of(frozen(measured(problem), count), plan) == expected


def test_each_part_has_an_overhead() -> None:
    """0.5 s for every pass of a stage, whether it has something to do or not; I and W of a stage are two."""
    problem, plan = equal_stages("zb_h1", 2, 2)
    assert parts_of(measured(problem, overhead_s=0.5), plan) == [(0.5, 2.5), (1.75, 1.5)]


def test_the_first_stage_recomputes_in_its_weight_gradient() -> None:
    """1 s of forward again: in W on the first stage, in I on the second."""
    problem, plan = equal_stages("zb_h1", 2, 2)
    assert parts_of(measured(problem), recomputing(plan)) == [(0.0, 3.0), (2.25, 1.0)]


def test_what_the_first_stage_recomputes_is_not_held_until_its_weight_gradient() -> None:
    """Of 8 bytes none are kept, as layers have no inputs to keep; only stages with an I hold the 8 until W."""
    problem, plan = equal_stages("zb_h1", 2, 2)
    kept = [stage.kept.from_input_gradient for stage in CostModel(problem).price(recomputing(plan)).stages]
    assert kept == [0, 8]
