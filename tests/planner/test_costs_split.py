"""Seconds of split backward passes, stage by stage."""

from __future__ import annotations

from test_virtual_stages import split_problem

from planner.simulation.estimate import simulate_plan


def test_the_first_stage_has_nothing_to_do_for_input_gradients() -> None:
    """Split parts take 1.25 + 1 s, the whole 2 s: the first stage runs the whole in W."""
    problem, plan = split_problem(backward_input_s=1.25, backward_weight_s=1.0)
    first, second = simulate_plan(problem, plan)[0].lanes
    takes = {span.label: span.end_s - span.start_s for lane in (first, second) for span in lane.spans}
    assert (takes["0I0"], takes["0W0"]) == (0.0, 2.0)
    assert (takes["1I0"], takes["1W0"]) == (1.25, 1.0)
