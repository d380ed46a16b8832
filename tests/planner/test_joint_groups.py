"""Context and expert groups, and ZeRO 3 without resharding, in the searches: against the oracle and the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from strategies import (
    RELATIVE,
    SWITCH,
    chain_problem,
    chain_problems,
    context_of,
    flat_cluster,
    search,
    search_options,
    shared_parameters,
)

from planner.bounds import BOUNDS
from planner.cluster import Cluster, Link
from planner.coarsening import coarsened, fixed_boundaries
from planner.costs.model import CostModel
from planner.errors import InputError
from planner.graph import Layer, TiedParameters
from planner.joint import context_degrees, expert_degrees, levels_of, may_run, spreads_experts, variants
from planner.optimizers._assignments import device_groups
from planner.optimizers._chain_space import ChainSpace
from planner.optimizers.base import OPTIMIZERS, refusal
from planner.optimizers.exhaustive import count_plans
from planner.options import Decision, Level, Objective, Replication, SearchModel, SearchOptions
from planner.plan import Plan, Stage
from planner.portfolio import query_of
from planner.problem import Problem
from planner.profile import Profile
from planner.result import Status
from planner.service import plan
from planner.simulation.estimate import simulate_plan
from planner.targets import TARGETS
from planner.verify import verify
from planner.workload import Recomputation, ReplicaMode, Training

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
DEGREES = (Decision.CONTEXT, Decision.EXPERT)
FEW = 3_000


@st.composite
def grouped_problems(draw: st.DrawFn, *, most_layers: int = 3, devices: int = 4) -> Problem:
    """Small chains with keys and values to exchange and routed experts, at every context and expert degree.

    On devices alike, in one node or in two.
    """
    problem = draw(chain_problems(most_layers=most_layers, one_type=True, most_samples=4))
    problem = replace(problem, cluster=draw(_equal_devices(devices)))
    layers = tuple(
        replace(
            layer,
            expert_parameter_bytes=draw(st.sampled_from([0, layer.parameter_bytes - layer.replicated_parameter_bytes])),
            expert_dispatch_bytes_per_sample=draw(st.sampled_from([0, 32])),
            context_bytes_per_sample=draw(st.sampled_from([0, 16])),
        )
        for layer in problem.graph.layers
    )
    tied = tuple(_shared_by(layers, tied) for tied in problem.graph.tied)
    tensor = problem.workload.tensor
    context = draw(st.sampled_from([c for c in (1, 2, 2, 2, 4) if tensor * c <= devices]))
    expert = draw(st.sampled_from([1, 2, 2, 4])) if any(layer.expert_parameter_bytes for layer in layers) else 1
    workload = replace(problem.workload, context=context, expert=expert)
    if isinstance(workload, Training):
        workload = replace(workload, reshard=draw(st.booleans()), sequence_parallel=draw(st.booleans()))
    graph = replace(problem.graph, layers=layers, tied=tied)
    return replace(problem, graph=graph, workload=workload)


def _shared_by(layers: Sequence[Layer], tied: TiedParameters) -> TiedParameters:
    """The set, with what these layers can share."""
    first, second = (layer for layer in layers if layer.id in tied.layers)
    return shared_parameters(first, second)


@st.composite
def _equal_devices(draw: st.DrawFn, count: int) -> Cluster:
    """At one switch, or half of them at each of two switches that a narrower link joins."""
    memory = draw(st.sampled_from([2**20, 2**20, 2000, 1000]))
    cluster = flat_cluster(
        ["gpu"] * count, memory_bytes={"gpu": memory}, bandwidth=draw(st.sampled_from([16.0, 512.0])), latency_s=0.25
    )
    if draw(st.booleans()):
        return cluster
    half = [device.id for device in cluster.devices[count // 2 :]]
    far = tuple(replace(link, b="other" if link.a in half else link.b) for link in cluster.links)
    between = Link(a=SWITCH, b="other", bandwidth_bytes_per_s=8.0, latency_s=0.5)
    return replace(cluster, links=(*far, between))


@settings(max_examples=150, suppress_health_check=SLOW_DRAWS)
@given(problem=grouped_problems(devices=8), options=search_options(), data=st.data())
def test_prices_of_intervals_are_those_of_plans(problem: Problem, options: SearchOptions, data: st.DataObject) -> None:
    """Two stages of `ChainSpace` and the same two as a plan: passes, tails, memory and what lies between them."""
    context = context_of(problem, options)
    assume(len(problem.index) > 1 and not problem.graph.colocated and context.batches())
    batch = data.draw(st.sampled_from(context.batches()))
    size, count = batch
    pair = size % 2 == 0 if options.replica_mode is ReplicaMode.SPLIT else count > 1
    space = ChainSpace(context, "1f1b", batch, (1, 2) if pair else (1,))
    assume(space.configs)
    config = data.draw(st.sampled_from(space.configs))
    later = space.add((0,), config)
    assume(later is not None and space.add(later, config) is not None)
    assert later is not None
    cut, n = data.draw(st.integers(1, len(problem.index) - 1)), len(problem.index)
    stages = [(0, cut, config, later), (cut, n, config, (0,))]
    priced = context.costs.price(space.plan(stages, idle_last=False))
    event(f"context {problem.workload.context}, expert {problem.workload.expert}, {config.replicas} replicas")
    for (i, j, _, counts), here, from_here in zip(stages, priced.stages, (2, 1), strict=True):
        arrays = space.stage(counts, config, from_here)
        assert arrays is not None
        assert arrays.pass_s[i, j] == pytest.approx(here.pass_s, rel=RELATIVE)
        assert arrays.excess_bytes[i, j] == here.memory.total_bytes - here.memory.limit_bytes
        assert problem.graph.tied or arrays.tail_s[i, j] == pytest.approx(here.tail_s, rel=RELATIVE)
    boundary = space.boundary(later, config, config)
    assert boundary is not None
    moved = sum(transfer.forward_s() + transfer.backward_s() for transfer in priced.transfers)
    assert options.search_model is SearchModel.CLOSED or boundary.moved_s[cut] == pytest.approx(moved, rel=RELATIVE)


@settings(max_examples=150, suppress_health_check=SLOW_DRAWS)
@given(problem=grouped_problems(), options=search_options())
def test_the_recurrence_finds_the_oracles_value_with_groups_inside_stages(
    problem: Problem, options: SearchOptions
) -> None:
    context = context_of(problem, options)
    assume(not refusal(OPTIMIZERS["exhaustive"], context) and count_plans(context) <= FEW)
    oracle, found = (search(name, problem, options) for name in ("exhaustive", "chain_dp"))
    values = [o.candidates[0].objective_s if o.candidates else math.inf for o in (oracle, found)]
    event(f"context {problem.workload.context}, expert {problem.workload.expert}, exact {found.exact}")
    assert values[1] >= values[0] * (1 - RELATIVE)
    if found.exact and values[0] < math.inf:
        assert values[1] <= values[0] + RELATIVE * max(1.0, values[0])
    for candidate in found.candidates[:1]:
        assert verify(candidate.plan, problem) == ()


@settings(max_examples=150, suppress_health_check=SLOW_DRAWS)
@given(problem=grouped_problems(), options=search_options())
def test_no_bound_exceeds_a_plan_with_groups_inside_stages(problem: Problem, options: SearchOptions) -> None:
    context = context_of(problem, replace(options, num_finalists=1000))
    assume(not refusal(OPTIMIZERS["exhaustive"], context) and 0 < count_plans(context) <= FEW and context.batches())
    plans = OPTIMIZERS["exhaustive"].search(context).candidates
    assume(plans)
    query = query_of(context)
    for bound in BOUNDS:
        value = bound.objective_s(query)
        assert value is None or value <= plans[0].objective_s * (1 + RELATIVE), bound.name
    iterations = [b for bound in BOUNDS if (b := bound.iteration_s(query)) is not None]
    for candidate in plans[:60]:
        seconds = simulate_plan(problem, candidate.plan)[0].makespan_s
        assert all(value <= seconds * (1 + RELATIVE) for value in iterations)


@settings(max_examples=40, suppress_health_check=SLOW_DRAWS)
@given(problem=grouped_problems(most_layers=2), options=search_options())
def test_the_search_over_degrees_is_the_best_of_its_variants(problem: Problem, options: SearchOptions) -> None:
    options = replace(options, searched=DEGREES)
    contexts = [context_of(each, options) for each in variants(problem, options)]
    usable = [context for context in contexts if not refusal(OPTIMIZERS["exhaustive"], context)]
    assume(sum(map(count_plans, usable)) <= FEW)
    event(f"{len(contexts)} variants")
    outcomes = [OPTIMIZERS["exhaustive"].search(context) for context in usable]
    oracle = min((o.candidates[0].objective_s for o in outcomes if o.candidates), default=math.inf)
    result = plan(problem, options)
    if result.plan is None:
        assert result.report.status is not Status.INFEASIBLE or oracle == math.inf
        return
    assert verify(result.plan, problem) == ()
    assert result.report.bound_s is None or result.report.bound_s <= oracle * (1 + RELATIVE)
    assert result.report.objective_s is not None
    assert result.report.objective_s >= oracle * (1 - RELATIVE)
    if result.report.status is Status.OPTIMAL:
        assert result.report.objective_s <= oracle + RELATIVE * max(1.0, oracle)
    fixed = _fixed(problem, result.plan)
    again = plan(fixed, replace(options, searched=()))
    if again.report.status is Status.OPTIMAL and result.report.status is Status.OPTIMAL:
        assert again.report.objective_s == pytest.approx(result.report.objective_s, rel=RELATIVE)


def _fixed(problem: Problem, found: Plan) -> Problem:
    """The problem with the plan's degrees given."""
    first = found.stages[0]
    return problem.with_workload(replace(problem.workload, context=first.context, expert=first.expert))


@settings(max_examples=60, suppress_health_check=SLOW_DRAWS)
@given(problem=grouped_problems(most_layers=6), data=st.data())
def test_joined_layers_exchange_and_keep_what_the_single_ones_do(problem: Problem, data: st.DataObject) -> None:
    problem = replace(problem, profiles=tuple(_offering_selective(profile) for profile in problem.profiles))
    cuts = data.draw(st.sets(st.integers(0, len(problem.index))))
    coarse = coarsened(problem, sorted({*fixed_boundaries(problem), *cuts}))
    work = problem.workload
    groups = device_groups(problem)
    assume(groups and work.context % work.expert == 0)
    stage = Stage(
        layers=tuple(layer.id for layer in coarse.problem.index.layers),
        replicas=(groups[0],),
        tensor=work.tensor,
        context=work.context,
        expert=work.expert,
        recomputation=Recomputation.SELECTIVE,
    )
    size = work.global_batch_size
    whole = Plan(stages=(stage,), schedule="1f1b", microbatch_size=size, num_microbatches=1)
    joined, single = (
        CostModel(each).price(found).stages[0]
        for each, found in ((coarse.problem, whole), (problem, coarse.refined(whole)))
    )
    assert joined.pass_s == pytest.approx(single.pass_s, rel=RELATIVE)
    assert joined.memory.weights_bytes == single.memory.weights_bytes
    assert joined.parts.selective_bytes <= joined.parts.activation_bytes
    assert abs(joined.kept_bytes - single.kept_bytes) <= len(problem.index)  # every layer's bytes are rounded up


def _offering_selective(profile: Profile) -> Profile:
    """Half of what every layer keeps is dropped, a quarter of its forward pass computed again."""
    tables = (
        replace(
            table,
            layers={
                name: replace(
                    cost,
                    selective_activation_bytes=cost.activation_bytes // 2,
                    selective_recompute_s=cost.forward_s / 4,
                    sequence_activation_bytes=cost.activation_bytes // 4,
                )
                for name, cost in table.layers.items()
            },
        )
        for table in profile.tables
    )
    return replace(profile, tables=tuple(tables))


def _grouped_chain(
    *,
    devices: int = 4,
    samples: int = 4,
    memory_bytes: int = 2**40,
    experts: int = 0,
    context: int = 0,
    **workload: object,
) -> Problem:
    """Two equal layers of 1 s forward, 2 s backward and 4096 bytes of parameters."""
    problem = chain_problem(
        [(1.0, 2.0)] * 2,
        devices=devices,
        num_microbatches=samples,
        parameter_bytes=[4096, 4096],
        memory_bytes=memory_bytes,
    )
    layers = tuple(
        replace(layer, expert_parameter_bytes=experts, context_bytes_per_sample=context)
        for layer in problem.graph.layers
    )
    work = replace(problem.workload, **workload)  # type: ignore[arg-type]
    return replace(problem, graph=replace(problem.graph, layers=layers), workload=work)


def test_only_models_with_experts_or_long_contexts_are_searched_for_them() -> None:
    plain = _grouped_chain()
    assert [each.workload for each in variants(plain, SearchOptions(searched=DEGREES))] == [plain.workload]
    long = _grouped_chain(context=64)
    assert context_degrees(long, 1) == [1, 2, 4]
    assert context_degrees(long, 2) == [1, 2]
    assert context_degrees(long.with_workload(replace(long.workload, sequence_length=2048)), 1) == [1, 2]
    routed = _grouped_chain(experts=2048)
    assert expert_degrees(routed, routed.workload) == [1]
    assert expert_degrees(routed, replace(routed.workload, context=2)) == [1, 2]
    assert expert_degrees(routed, replace(routed.workload, microbatch_size=None)) == [1, 2, 4]


def test_a_long_context_is_split_where_one_sample_is_all_there_is() -> None:
    """One sample of two layers on four devices: 2 stages of 3 s each; with its tokens on four, 6 / 4 s."""
    problem = _grouped_chain(samples=1, context=64)
    alone, split = (plan(problem, SearchOptions(searched=searched)) for searched in ((), DEGREES))
    assert alone.report.objective_s == 6.0
    assert split.report.objective_s == pytest.approx(1.5, rel=1e-6)
    assert split.plan is not None
    assert {stage.context for stage in split.plan.stages} == {4}
    assert {contribution.context for contribution in split.report.contributions} == {1, 2, 4}


def test_experts_are_spread_where_they_do_not_fit() -> None:
    """4096 B of weights a layer at 4 + 4 + 8 bytes per parameter need 16 KiB, 9 KiB a device hold half of them.

    Both layers' experts on four devices that split the four samples: 6 s, without any pipeline.
    """
    problem = _grouped_chain(experts=4096, samples=4, memory_bytes=9 * 1024)
    problem = problem.with_workload(replace(problem.workload, microbatch_size=None))
    alone = plan(problem, SearchOptions())
    assert alone.report.status is Status.INFEASIBLE
    spread = plan(problem, SearchOptions(searched=(Decision.EXPERT,)))
    assert spread.plan is not None
    assert [(stage.expert, len(stage.replicas)) for stage in spread.plan.stages] == [(4, 4)]
    assert spread.report.objective_s == pytest.approx(6.0, rel=1e-6)
    assert verify(spread.plan, problem) == ()


def test_without_resharding_weights_are_gathered_once() -> None:
    """ZeRO 3 on links where a gather takes long: kept weights win where they fit, freed ones where they do not."""
    roomy = _replicated(memory_bytes=2**20)
    tight = _replicated(memory_bytes=19 * 1024)
    zero = SearchOptions(searched=(Decision.ZERO, Decision.RESHARD), replication=Replication.EQUAL, num_stages=1)
    levels = levels_of(roomy.workload, zero)
    assert levels == (
        Level(Recomputation.NONE, 0),
        Level(Recomputation.NONE, 1),
        Level(Recomputation.NONE, 3, reshard=False),
        Level(Recomputation.NONE, 3, reshard=True),
    )
    times = {}
    for reshard in (False, True):
        given_work = replace(roomy.workload, zero=3, reshard=reshard)
        found = plan(roomy.with_workload(given_work), replace(zero, searched=()))
        assert found.plan is not None
        assert found.plan.stages[0].reshard is reshard
        times[reshard] = found.report.objective_s
    assert times[False] < times[True]
    held, freed = plan(roomy, zero).plan, plan(tight, zero).plan
    assert held is not None
    assert freed is not None
    assert held.stages[0].zero < 3
    assert (freed.stages[0].zero, freed.stages[0].reshard) == (3, False)


def _replicated(memory_bytes: int) -> Problem:
    """One microbatch of four samples a time on four replicas, joined at 8 KiB/s."""
    problem = chain_problem(
        [(1.0, 2.0)] * 2,
        devices=4,
        num_microbatches=2,
        microbatch_size=4,
        parameter_bytes=[4096, 4096],
        memory_bytes=memory_bytes,
        bandwidth=8192.0,
    )
    return problem


def test_an_expert_degree_that_no_batch_allows_is_infeasible_and_says_why() -> None:
    problem = _grouped_chain(experts=4096, expert=2)
    options = SearchOptions(replication=Replication.NONE)
    assert not may_run(problem, options, 1)
    result = plan(problem, options)
    assert result.report.status is Status.INFEASIBLE
    assert result.report.infeasibility is not None
    assert result.report.infeasibility.constraint == "expert"
    assert "expert degree 2 divides no number" in result.report.infeasibility.message


def test_which_replication_degrees_spread_experts() -> None:
    work = Training(global_batch_size=8, context=2, expert=4)
    assert [r for r in range(1, 7) if spreads_experts(work, ReplicaMode.SPLIT, r)] == [2, 4, 6]
    assert not any(spreads_experts(work, ReplicaMode.DEALT, r) for r in range(1, 7))
    assert spreads_experts(replace(work, expert=2), ReplicaMode.DEALT, 3)


@pytest.mark.parametrize("name", ["milp", "ideal_dp", "order_dp", "hierarchical_dp"])
def test_optimizers_that_know_no_groups_say_so(name: str) -> None:
    problem = _grouped_chain(context=64, experts=2048).with_workload(
        Training(global_batch_size=4, microbatch_size=1, context=2, expert=2)
    )
    model = SearchModel.PIPEDREAM if name == "hierarchical_dp" else SearchModel.BLOCKING
    options = SearchOptions(objective=Objective.THROUGHPUT, search_model=model, optimizer=name)
    reason = refusal(OPTIMIZERS[name], context_of(problem, options))
    assert reason == "it knows no context or expert degree (they are 2 and 2)"
    with pytest.raises(InputError, match=f"optimizer {name!r} cannot search this problem"):
        plan(problem, options)


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.trains])
def test_engines_are_given_the_groups_that_they_know(name: str) -> None:
    problem = _grouped_chain(context=64, experts=2048)
    result = plan(problem, SearchOptions(searched=DEGREES, target=name))
    assert result.plan is not None
    assert TARGETS[name].misfit(result.plan, problem) == ""
    unknown = [decision for decision in DEGREES if decision not in TARGETS[name].degrees]
    for decision in unknown:
        assert {getattr(stage, decision.value) for stage in result.plan.stages} == {1}
        pinned = problem.with_workload(replace(problem.workload, **{decision.value: 2}))
        with pytest.raises(InputError, match=f"cannot express {decision.value} degree 2: use 1"):
            plan(pinned, SearchOptions(target=name))


def test_virtual_stages_have_groups_too() -> None:
    problem = chain_problem([(1.0, 2.0)] * 8, devices=4, num_microbatches=4, workload={"context": 2})
    found = search("virtual_stages", problem, SearchOptions(schedule="interleaved_1f1b"))
    assert found.candidates
    stage: Stage = found.candidates[0].plan.stages[0]
    assert (stage.context, len(stage.replicas[0])) == (2, 2)
    assert verify(found.candidates[0].plan, problem) == ()
    dense = chain_problem([(1.0, 2.0)] * 8, devices=8, num_microbatches=8, parameter_bytes=[64] * 8)
    layers = tuple(replace(layer, expert_parameter_bytes=64) for layer in dense.graph.layers)
    work = replace(dense.workload, expert=2, microbatch_size=None)
    spread = replace(dense, graph=replace(dense.graph, layers=layers), workload=work)
    found = search("virtual_stages", spread, SearchOptions(schedule="interleaved_1f1b"))
    assert {len(stage.replicas) % 2 for c in found.candidates for stage in c.plan.stages} == {0}


def test_the_pipeline_bound_counts_what_moves_between_groups_and_inside_them() -> None:
    """Each layer fills the two devices of its stage, one microbatch: 0.5 + 1 s of passes in each.

    4096 B move over two links of 1024 B/s at a time, 2 s each way; then both stages all-reduce 4096 B in 4 s.
    """
    problem = chain_problem(
        [(1.0, 2.0)] * 2,
        devices=4,
        num_microbatches=1,
        parameter_bytes=[4096, 4096],
        output_bytes=[4096, 0],
        memory_bytes=24_000,
        bandwidth=1024.0,
        workload={"context": 2},
    )
    options = SearchOptions(schedule="gpipe")
    found = plan(problem, options)
    assert found.plan is not None
    assert found.estimate is not None
    assert [len(stage.layers) for stage in found.plan.stages] == [1, 1]
    assert found.estimate.iteration_time_s == pytest.approx(2 * 1.5 + 2 * 2.0 + 4.0)
    assert BOUNDS["pipeline"].iteration_s(query_of(context_of(problem, options))) == pytest.approx(11.0, rel=1e-3)
