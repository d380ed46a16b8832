"""Targets and pins: the search is restricted, so that exporters never have to refuse, and pins are kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from strategies import RELATIVE, chain_problem, chain_problems, dag_problems, search_options

from planner.errors import InputError
from planner.exporters import EXPORTERS, ExportContext
from planner.joint import settled
from planner.options import Decision, Replication, SearchOptions
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.result import PlanResult
from planner.runtime.running import check_runnable
from planner.service import plan
from planner.targets import TARGETS, check_target
from planner.workload import Inference, Recomputation, ReplicaMode, Training

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=120, suppress_health_check=SLOW_DRAWS)
@given(
    problem=st.one_of(chain_problems(most_layers=5), dag_problems(most_layers=5)),
    options=search_options(),
    target=st.sampled_from(sorted(TARGETS)),
    searched=st.sampled_from([(), tuple(Decision)]),
)
def test_a_plan_for_a_target_is_never_refused_by_it(
    problem: Problem, options: SearchOptions, target: str, searched: tuple[Decision, ...]
) -> None:
    options = replace(options, target=target, searched=searched)
    try:
        check_target(problem, options)
    except InputError:
        return  # what is given contradicts the target, and the user is told
    result = plan(problem, options)
    event(f"found: {result.plan is not None}")
    if result.plan is None:
        return
    assert TARGETS[target].misfit(result.plan, problem) == ""
    if target in EXPORTERS:
        assert EXPORTERS[target].export(ExportContext(problem=problem, plan=result.plan))
    elif isinstance(problem.workload, Training):
        assert check_runnable(result.plan).num_stages == len(result.plan.stages)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "abacus"}, "unknown target 'abacus': use "),
        ({"target": "torch_pipelining", "replica_mode": ReplicaMode.DEALT}, "dealt"),
        ({"target": "torch_pipelining", "schedule": "zb_h1"}, "schedule 'zb_h1'"),
        ({"target": "megatron", "schedule": "gpipe"}, "schedule 'gpipe': use 1f1b, interleaved_1f1b or auto"),
        ({"target": "vllm"}, "cannot express training"),
        ({"cuts": ("nowhere",)}, "'nowhere' names no layer"),
        ({"cuts": ("L0",)}, "first stage empty"),
        ({"cuts": ("L1", "L2"), "num_stages": 2}, "make 3 stages"),
    ],
)
def test_contradictions_are_named(change: dict[str, object], words: str) -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=4, num_microbatches=4)
    with pytest.raises(InputError, match=words):
        plan(problem, SearchOptions(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize("cuts", [("L1",), ("L3",), ("L1", "L3")])
def test_pinned_cuts_are_the_cuts(cuts: tuple[str, ...]) -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=4, num_microbatches=4)
    found = plan(problem, SearchOptions(cuts=cuts)).plan
    assert found is not None
    assert tuple(stage.layers[0] for stage in found.stages[1:]) == cuts


@settings(max_examples=40, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(most_layers=4, most_devices=3), options=search_options())
def test_fixing_what_an_optimal_plan_decided_returns_its_objective(problem: Problem, options: SearchOptions) -> None:
    options = replace(options, searched=(Decision.ZERO, Decision.RECOMPUTATION))
    free = plan(problem, options)
    if free.plan is None or free.report.gap is None or free.report.gap > RELATIVE:
        return
    cuts = tuple(stage.layers[0] for stage in free.plan.stages[1:])
    workload = replace(problem.workload, microbatch_size=free.plan.microbatch_size, num_microbatches=None)
    pins = {"cuts": cuts} if cuts else {"num_stages": 1}
    pinned = plan(problem.with_workload(workload), replace(options, **pins))  # type: ignore[arg-type]
    assert pinned.report.objective_s is not None
    assert free.report.objective_s is not None
    assert pinned.report.objective_s <= free.report.objective_s * (1 + RELATIVE)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_has_a_plan_on_a_chain_of_blocks(target: str) -> None:
    problem = chain_problem([(1.0, 2.0)] * 6, devices=4, num_microbatches=8, parameter_bytes=[8] * 6)
    if not TARGETS[target].trains:
        problem = problem.with_workload(Inference(global_batch_size=8))
    found = plan(problem, SearchOptions(target=target, searched=tuple(Decision))).plan
    assert found is not None
    assert TARGETS[target].misfit(found, problem) == ""


@settings(max_examples=25, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(most_layers=4, most_devices=3, most_samples=4, one_type=True))
def test_one_level_for_all_stages_is_the_best_of_the_levels_alone(problem: Problem) -> None:
    """For Megatron, searching recomputation and ZeRO finds what the best single choice of both finds."""
    if not isinstance(problem.workload, Training) or problem.workload.tensor > 1:
        return
    options = SearchOptions(target="megatron", schedule="1f1b", searched=(Decision.ZERO, Decision.RECOMPUTATION))
    together = plan(problem, options)
    alone = [
        plan(
            problem.with_workload(replace(problem.workload, recomputation=kind, zero=zero)),
            replace(options, searched=()),
        )
        for kind in Recomputation
        for zero in (0, 1)
    ]
    best = min(filter(None, map(_least_objective, alone)), default=None)
    event(f"found: {best is not None}")
    assert (together.plan is None) == (best is None)
    if together.plan is not None and best is not None:
        assert _least_objective(together) == pytest.approx(best, rel=RELATIVE)
        assert len({(stage.recomputation, stage.zero) for stage in together.plan.stages}) == 1


def _least_objective(result: PlanResult) -> float | None:
    """Of all finalists: the one with the smallest simulated time wins, and may have another objective."""
    values = [other.objective_s for other in result.runners_up]
    return None if result.report.objective_s is None else min(result.report.objective_s, *values, math.inf)


def test_the_runtime_takes_branches_as_stages_and_unequal_replication() -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=4, num_microbatches=4)
    layers = problem.index.layers
    halves = (("L0", "L2"), ("L1", "L3"))
    assert {name for half in halves for name in half} == {layer.id for layer in layers}
    devices = [(device.id,) for device in problem.cluster.devices]
    stages = (Stage(layers=halves[0], replicas=tuple(devices[:2])), Stage(layers=halves[1], replicas=(devices[2],)))
    made = Plan(stages=stages, schedule="zb_h1", microbatch_size=1, num_microbatches=4, replica_mode=ReplicaMode.DEALT)
    assert TARGETS["runtime"].misfit(made, problem) == ""
    assert "no interval" in TARGETS["torch_pipelining"].misfit(replace(made, schedule="1f1b"), problem)


def test_a_target_with_equal_degrees_asks_for_them() -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=4, num_microbatches=4)
    assert settled(problem, SearchOptions(target="torch_pipelining")).replication is Replication.EQUAL
    alone = SearchOptions(target="torch_pipelining", replication=Replication.NONE)
    assert settled(problem, alone).replication is Replication.NONE
