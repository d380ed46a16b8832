"""`order_dp`: plans for graphs of any width, repeatable, within memory and time."""

import pytest
from test_ideal_dp import INSTANCES, OPTIMA_MS, context_of, diamond, problem_of

from planner.optimizers import OPTIMIZERS
from planner.optimizers import order_dp as module
from planner.options import SearchModel
from planner.verify import verify
from profiles.importers import read_text


def search(problem, limit_s=60.0, **options):
    context = context_of(problem, limit_s, **options)
    assert OPTIMIZERS["order_dp"].supports(context) == ""
    return OPTIMIZERS["order_dp"].search(context)


@pytest.mark.parametrize(("name", "value"), OPTIMA_MS.items())
def test_published_optima_are_reached_but_not_proven(name, value, monkeypatch):
    monkeypatch.setattr(module, "MAX_ITERATIONS", 2)
    problem = problem_of(read_text((INSTANCES / f"{name}.json").read_text()))
    outcome = search(problem)
    assert outcome.candidates[0].objective_s * 1e3 == pytest.approx(value, rel=1e-5)
    assert outcome.finished
    assert not outcome.exact
    assert outcome.bound_s is None
    assert verify(outcome.candidates[0].plan, problem) == ()
    assert search(problem).candidates == outcome.candidates


def test_memory_counts_as_the_cost_model_has_it():
    assert [len(stage.layers) for stage in search(diamond(memory=22)).candidates[0].plan.stages] == [2, 2]
    assert search(diamond(memory=21)).candidates == ()


def test_an_expired_clock_ends_it():
    outcome = search(diamond(), limit_s=0.0)
    assert not outcome.finished
    assert outcome.candidates == ()


def test_other_models_are_left_to_others():
    context = context_of(diamond(), search_model=SearchModel.OVERLAPPED)
    assert "order_dp minimises throughput" in OPTIMIZERS["order_dp"].supports(context)
