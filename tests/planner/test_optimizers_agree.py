"""Independent witnesses: chain_dp = exhaustive = milp on random small problems, and what every optimum must obey."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import (
    RELATIVE,
    assert_same_objective,
    best,
    chain_problem,
    chain_problems,
    context_of,
    dag_problems,
    search,
    search_options,
)

from planner.certificates import PROVEN_GAP
from planner.cluster import Cluster
from planner.codec import dumps, fingerprint, loads
from planner.graph import LayerGraph, TiedParameters
from planner.optimizers.base import OPTIMIZERS, Outcome, SearchContext, mixes_devices
from planner.optimizers.exhaustive import MAX_PLANS, count_plans
from planner.optimizers.milp import Milp
from planner.options import Objective, Replication, SearchOptions
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.result import Status
from planner.service import plan
from planner.simulation.estimate import simulate_plan
from planner.verify import verify

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def supported_context(problem: Problem, options: SearchOptions) -> SearchContext:
    """A context on which chain_dp (and uniform, and the oracle) can work: some class of devices fills a group."""
    context = context_of(problem, options)
    assume(OPTIMIZERS["chain_dp"].supports(context) == "")
    return context


def nothing_wrong(outcome: Outcome, context: SearchContext) -> None:
    """`verify` finds nothing on any candidate."""
    for candidate in outcome.candidates:
        assert verify(candidate.plan, context.problem, context.costs) == ()


@settings(max_examples=500, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(), options=search_options())
def test_chain_dp_equals_exhaustive(problem: Problem, options: SearchOptions) -> None:
    context = supported_context(problem, options)
    assume(count_plans(context) <= 4_000)
    oracle = OPTIMIZERS["exhaustive"].search(context)
    dp = OPTIMIZERS["chain_dp"].search(context)
    assert oracle.finished
    assert dp.exact is oracle.exact is not mixes_devices(context)
    assert_same_objective(dp, oracle)
    nothing_wrong(dp, context)
    nothing_wrong(oracle, context)


def test_a_frozen_copy_of_tied_parameters_takes_no_part_in_the_sum() -> None:
    """Found by the test above: the DP charged the trainable copy an all-reduce with a frozen one, which has none."""
    problem = chain_problem(
        [(1.0, 0.0), (1.0, 1.0)], devices=2, num_microbatches=4, parameter_bytes=[16, 16], bandwidth=1.0
    )
    frozen = (replace(problem.graph.layers[0], trainable=False), problem.graph.layers[1])
    tied = (TiedParameters(layers=("L0", "L1"), parameter_bytes=16),)
    shared = replace(problem, graph=replace(problem.graph, layers=frozen, tied=tied))
    options = SearchOptions(objective=Objective.THROUGHPUT)
    dp, oracle = (search(name, shared, options) for name in ("chain_dp", "exhaustive"))
    assert oracle.candidates[0].objective_s == 2.0  # two stages; an all-reduce would add 16 / 4 s
    assert_same_objective(dp, oracle)


@pytest.mark.parametrize("solver", ["cbc", "highs"])
@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=dag_problems(), options=search_options(replications=(Replication.EQUAL, Replication.NONE)))
def test_milp_equals_exhaustive(solver: str, problem: Problem, options: SearchOptions) -> None:
    if solver == "highs":
        pytest.importorskip("highspy")
    milp = Milp(solver)
    context = context_of(problem, options)
    assume(milp.supports(context) == "")
    assume(count_plans(context) <= 4_000)
    oracle = OPTIMIZERS["exhaustive"].search(context)
    found = milp.search(context)
    assert found.exact
    assert_same_objective(found, oracle)
    nothing_wrong(found, context)
    if found.candidates:
        assert found.bound_s is not None
        assert found.bound_s <= oracle.candidates[0].objective_s * (1 + 1e-12)
        assert found.bound_s >= oracle.candidates[0].objective_s * (1 - 1e-4) - 1e-9


@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=dag_problems(), options=search_options())
def test_heuristic_use_of_chain_dp_on_graphs_is_honest(problem: Problem, options: SearchOptions) -> None:
    context = supported_context(problem, options)
    assume(count_plans(context) <= 2_000)
    oracle, dp = OPTIMIZERS["exhaustive"].search(context), OPTIMIZERS["chain_dp"].search(context)
    nothing_wrong(dp, context)
    if dp.candidates:
        assert dp.candidates[0].objective_s >= oracle.candidates[0].objective_s * (1 - 1e-12)
    if dp.exact:
        assert_same_objective(dp, oracle)


@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(most_layers=4, most_devices=3), options=search_options())
def test_uniform_is_never_better_than_the_optimum(problem: Problem, options: SearchOptions) -> None:
    context = supported_context(problem, options)
    outcome = OPTIMIZERS["uniform"].search(context)
    nothing_wrong(outcome, context)
    optimum = best(OPTIMIZERS["exhaustive"].search(context))
    for candidate in outcome.candidates:
        assert optimum is not None
        assert candidate.objective_s >= optimum.objective_s * (1 - 1e-12)


def optimum(problem: Problem, options: SearchOptions) -> float:
    """The best value, infinite when nothing fits."""
    supported_context(problem, options)
    found = best(search("chain_dp", problem, options))
    return float("inf") if found is None else found.objective_s


@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(), options=search_options())
def test_more_memory_or_bandwidth_never_hurts(problem: Problem, options: SearchOptions) -> None:
    value = optimum(problem, options)
    roomier = tuple(replace(kind, memory_bytes=2 * kind.memory_bytes) for kind in problem.cluster.device_types)
    relaxed = optimum(_with_cluster(problem, replace(problem.cluster, device_types=roomier)), options)
    assert relaxed <= value * (1 + 1e-12)
    wider = tuple(replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s) for link in problem.cluster.links)
    faster = optimum(_with_cluster(problem, replace(problem.cluster, links=wider)), options)
    assert faster <= value * (1 + 1e-12)


@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(), options=search_options())
def test_doubling_all_seconds_doubles_the_optimum(problem: Problem, options: SearchOptions) -> None:
    links = tuple(
        replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / 2, latency_s=2 * x.latency_s)
        for x in problem.cluster.links
    )
    slower = replace(
        problem,
        profiles=tuple(_slower(profile) for profile in problem.profiles),
        cluster=replace(problem.cluster, links=links),
    )
    assert optimum(slower, options) == pytest.approx(2 * optimum(problem, options), rel=1e-12)


@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(), options=search_options(), names=st.permutations(range(6)))
def test_renaming_layers_changes_nothing(problem: Problem, options: SearchOptions, names: list[int]) -> None:
    odd = ["block-1", "block 1", "block/1", "é: free", 'in"f', "x" * 300]
    supported_context(problem, options)
    new = {layer.id: odd[names[i]] for i, layer in enumerate(problem.graph.layers)}
    before, after = search("chain_dp", problem, options), search("chain_dp", _renamed(problem, new), options)
    assert_same_objective(before, after)
    if before.candidates:
        renamed = [tuple(new[name] for name in stage.layers) for stage in before.candidates[0].plan.stages]
        assert [stage.layers for stage in after.candidates[0].plan.stages] == renamed


@settings(max_examples=100, suppress_health_check=SLOW_DRAWS)
@given(problem=chain_problems(most_layers=5), options=search_options())
def test_makespan_is_at_least_every_lane_and_every_path(problem: Problem, options: SearchOptions) -> None:
    context = supported_context(problem, options)
    for candidate in OPTIMIZERS["chain_dp"].search(context).candidates:
        timeline, estimate = simulate_plan(problem, candidate.plan, context.costs)
        priced = context.costs.price(candidate.plan)
        path = sum(stage.pass_s for stage in priced.stages) + sum(t.forward_s() for t in priced.transfers)
        assert timeline.makespan_s >= path * (1 - 1e-12)
        for lane in timeline.lanes:
            assert timeline.makespan_s >= lane.busy_s * (1 - 1e-12)
        assert estimate.iteration_time_s == timeline.makespan_s


@settings(max_examples=80, suppress_health_check=SLOW_DRAWS)
@given(
    problem=st.one_of(dag_problems(most_layers=5), chain_problems(most_layers=4, most_devices=3)),
    options=search_options(),
)
def test_plan_claims_nothing_that_the_oracle_denies(problem: Problem, options: SearchOptions) -> None:
    context = supported_context(problem, options)
    assume(count_plans(context) <= 2_000)
    oracle, result = best(OPTIMIZERS["exhaustive"].search(context)), plan(problem, options)
    if oracle is None:
        assert result.plan is None
        return
    assert result.report.status is not Status.INFEASIBLE
    if result.report.bound_s is not None:
        assert result.report.bound_s <= oracle.objective_s * (1 + RELATIVE)
    if result.report.status is Status.OPTIMAL:
        assert result.report.objective_s == pytest.approx(oracle.objective_s, rel=PROVEN_GAP, abs=1e-12)


@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=dag_problems(), options=search_options())
def test_every_noun_survives_json(problem: Problem, options: SearchOptions) -> None:
    nouns: list[Any] = [problem, problem.graph, problem.cluster, *problem.profiles, options]
    for candidate in OPTIMIZERS["exhaustive"].search(supported_context(problem, options)).candidates[:1]:
        timeline, estimate = simulate_plan(problem, candidate.plan)
        nouns += [candidate.plan, timeline, estimate]
    for noun in nouns:
        again = loads(type(noun), dumps(noun))
        assert again == noun
        assert fingerprint(again) == fingerprint(noun)


def test_the_oracle_refuses_what_is_too_large() -> None:
    problem = chain_problem([(1.0, 2.0)] * 40, devices=16, num_microbatches=16)
    context = context_of(problem, SearchOptions())
    assert count_plans(context) > MAX_PLANS
    assert "more than" in OPTIMIZERS["exhaustive"].supports(context)


def _with_cluster(problem: Problem, cluster: Cluster) -> Problem:
    return replace(problem, cluster=cluster)


def _slower(profile: Profile) -> Profile:
    def twice(cost: LayerCost) -> LayerCost:
        return replace(
            cost,
            forward_s=2 * cost.forward_s,
            backward_s=2 * cost.backward_s,
            optimizer_s=2 * cost.optimizer_s,
        )

    tables = tuple(
        CostTable(microbatch_size=t.microbatch_size, layers={k: twice(c) for k, c in t.layers.items()})
        for t in profile.tables
    )
    return replace(profile, tables=tables, action_overhead_s=2 * profile.action_overhead_s)


def _renamed(problem: Problem, new: dict[str, str]) -> Problem:
    graph = problem.graph
    changed = LayerGraph(
        layers=tuple(replace(layer, id=new[layer.id]) for layer in graph.layers),
        edges=tuple(replace(e, source=new[e.source], target=new[e.target]) for e in graph.edges),
        tied=tuple(replace(t, layers=tuple(new[name] for name in t.layers)) for t in graph.tied),
        colocated=tuple(tuple(new[name] for name in group) for group in graph.colocated),
    )
    profiles = tuple(
        replace(
            p,
            tables=tuple(replace(t, layers={new[name]: c for name, c in t.layers.items()}) for t in p.tables),
        )
        for p in problem.profiles
    )
    return replace(problem, graph=changed, profiles=profiles)
