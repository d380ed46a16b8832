"""Prices of context and expert degrees, resharding and offload, by hand; and all intervals agree with one stage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import chain_problem

from planner.costs.communication import all_to_all_s, ring_all_reduce_s, ring_gather_s
from planner.costs.compute import layer_prices
from planner.costs.intervals import interval_parts
from planner.costs.model import CostModel, PricedStage
from planner.costs.parts import StageParts, parts_of
from planner.costs.stage import StageSetting, stage_memory, stage_seconds
from planner.errors import InputError
from planner.graph import Layer, TiedParameters
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import LayerCost
from planner.workload import Inference, Recomputation, ReplicaMode

BANDWIDTH, LATENCY = 1000.0, 0.25
LAYER = {
    "expert_parameter_bytes": 640,
    "expert_dispatch_bytes_per_sample": 48,
    "context_bytes_per_sample": 32,
    "tensor_collective_bytes_per_sample": 16,
}
COST = {
    "activation_bytes": 400,
    "selective_activation_bytes": 240,
    "selective_recompute_s": 0.5,
    "sequence_activation_bytes": 80,
    "optimizer_s": 0.2,
}


def problem_of(devices: int = 8, *, host: float | None = None, **workload: object) -> Problem:
    """Two equal layers of 800 parameter bytes, 640 of them experts'; microbatches of 4 samples; float32."""
    made = chain_problem(
        [(4.0, 8.0)] * 2,
        devices=devices,
        num_microbatches=2,
        microbatch_size=4,
        parameter_bytes=[800] * 2,
        output_bytes=[8] * 2,
        bandwidth=BANDWIDTH,
        latency_s=LATENCY,
        workload=workload,  # type: ignore[arg-type]
    )
    table = made.profiles[0].tables[0]
    costs = {name: replace(cost, **COST) for name, cost in table.layers.items()}  # type: ignore[arg-type]
    kinds = tuple(replace(kind, host_bandwidth_bytes_per_s=host) for kind in made.cluster.device_types)
    return replace(
        made,
        graph=replace(made.graph, layers=tuple(replace(layer, **LAYER) for layer in made.graph.layers)),  # type: ignore[arg-type]
        profiles=(replace(made.profiles[0], tables=(replace(table, layers=costs),)),),
        cluster=replace(made.cluster, device_types=kinds),
    )


def stage_of(
    problem: Problem, replicas: int = 1, *, mode: ReplicaMode = ReplicaMode.SPLIT, **fields: int
) -> PricedStage:
    """Both layers on one stage; the devices in order."""
    size = fields.get("tensor", 1) * fields.get("context", 1)
    groups = tuple(tuple(f"d{size * r + k}" for k in range(size)) for r in range(replicas))
    stage = Stage(layers=("L0", "L1"), replicas=groups, **fields)  # type: ignore[arg-type]
    plan = Plan(stages=(stage,), schedule="1f1b", microbatch_size=4, num_microbatches=2, replica_mode=mode)
    return CostModel(problem).price(plan).stages[0]


def route(problem: Problem) -> tuple[float, float]:
    """Bandwidth and latency between two devices of the switch."""
    found = problem.network.route("d0", "d1")
    assert found is not None
    return found.bandwidth_bytes_per_s, found.latency_s


def test_a_context_degree_divides_compute_and_activations_and_passes_keys_and_values() -> None:
    """c = 4: half of each step's seconds by c; 2 layers x 4 samples x 32 bytes go around in 3 steps of a quarter."""
    problem = problem_of()
    one, four = stage_of(problem), stage_of(problem, context=4)
    assert one.seconds.forward_s == 8.0
    bandwidth, latency = route(problem)
    round_s = 3 * (latency + 2 * 4 * 32 / 4 / bandwidth)
    assert four.seconds.forward_s == pytest.approx(8.0 / 4 + round_s)
    assert four.seconds.backward_s == pytest.approx(16.0 / 4 + 2 * round_s)
    assert four.kept_bytes == one.kept_bytes / 4 == 2 * 400 / 4
    assert four.memory.weights_bytes == one.memory.weights_bytes == 1600


def test_gradients_are_summed_over_replicas_and_context() -> None:
    problem = problem_of()
    bandwidth, latency = route(problem)
    for replicas, context in ((1, 4), (2, 2), (4, 1)):
        stage = stage_of(problem, replicas, context=context)
        assert stage.seconds.all_reduce_s == pytest.approx(6 * (latency + 1600 / 4 / bandwidth))


def test_zero_divides_by_replicas_and_context() -> None:
    stage = stage_of(problem_of(), 2, context=2, zero=1)
    assert (stage.memory.optimizer_bytes, stage.memory.gradients_bytes) == (2 * 1600 // 4, 1600)
    assert stage.seconds.optimizer_s == pytest.approx(0.4 / 4)


def test_an_expert_degree_divides_experts_but_not_their_rows() -> None:
    """e = 2 of 4 replicas: 2 x (160 + 640 / 2) bytes of weights; each replica's rows go half to the other device."""
    problem = problem_of()
    plain, spread = stage_of(problem, 4), stage_of(problem, 4, expert=2)
    assert spread.memory.weights_bytes == 2 * (160 + 320)
    assert spread.memory.optimizer_bytes == 2 * spread.memory.weights_bytes
    assert spread.kept_bytes == plain.kept_bytes
    bandwidth, latency = route(problem)
    rows = 2 * 4 * 48 / 4
    dispatch = latency + rows / 2 / bandwidth
    assert spread.seconds.forward_s - plain.seconds.forward_s == pytest.approx(2 * dispatch)
    assert spread.seconds.backward_s - plain.seconds.backward_s == pytest.approx(2 * dispatch)
    dense, experts = 6 * (latency + 320 / 4 / bandwidth), 2 * (latency + 640 / 2 / bandwidth)
    assert spread.seconds.all_reduce_s == pytest.approx(dense + experts)
    assert spread.seconds.optimizer_s == pytest.approx(0.4 * (160 + 320) / 800)


def test_zero_divides_experts_by_those_who_hold_the_same() -> None:
    """Four replicas, e = 2: dense optimizer state by 4, experts' by the 2 that hold them."""
    stage = stage_of(problem_of(), 4, expert=2, zero=1)
    assert stage.memory.optimizer_bytes == 2 * (320 // 4 + 640 // 2)
    assert stage.seconds.optimizer_s == pytest.approx(0.4 * (160 / 4 + 640 / 4) / 800)
    whole = stage_of(problem_of(), 4, expert=4, zero=3)
    assert whole.memory.weights_bytes == 320 // 4 + 2 * 640 // 4


def test_experts_are_spread_over_groups_that_run_a_microbatch_together() -> None:
    problem = problem_of()
    with pytest.raises(InputError, match="expert degree 3, but 2 tensor-parallel groups"):
        stage_of(problem, 2, expert=3)
    with pytest.raises(InputError, match="expert degree 2, but 1 tensor-parallel groups"):
        stage_of(problem, 2, mode=ReplicaMode.DEALT, expert=2)
    assert stage_of(problem, 2, context=2, mode=ReplicaMode.DEALT, expert=2).memory.weights_bytes == 2 * (160 + 320)


def test_a_tensor_degree_divides_rows_and_keys() -> None:
    problem = problem_of(16, tensor=2)
    stage = stage_of(problem, 2, tensor=2, context=2, expert=2)
    assert stage.memory.weights_bytes == 2 * (160 // 2 + 640 // 4)
    bandwidth, latency = route(problem)
    collective = 2 * (latency + 2 * 4 * 16 / 4 / 2 / bandwidth)
    rows = 2 * (latency + 2 * 4 * 48 / 4 / 2 / 2 / bandwidth)
    keys = latency + 2 * 4 * 32 / 2 / 2 / 2 / bandwidth
    assert stage.seconds.forward_s == pytest.approx(8.0 / 2 / 4 + collective + rows + keys)


def test_full_recomputation_exchanges_again() -> None:
    problem = problem_of()
    plain = stage_of(problem, 2, context=2, expert=2)
    full = stage_of(problem, 2, context=2, expert=2, recomputation=Recomputation.FULL)
    assert full.seconds.backward_s == pytest.approx(plain.seconds.backward_s + plain.seconds.forward_s)


def test_selective_recomputation_brings_one_core_back() -> None:
    """Keeps 240 of 400 bytes per layer; 0.5 s per layer more; 160 bytes of one layer while it is recomputed."""
    plain, selective = (stage_of(problem_of(), recomputation=r) for r in (Recomputation.NONE, Recomputation.SELECTIVE))
    assert (plain.kept_bytes, selective.kept_bytes) == (800, 480)
    assert selective.seconds.backward_s == plain.seconds.backward_s + 1.0
    assert selective.seconds.forward_s == plain.seconds.forward_s
    assert selective.memory.workspace_bytes == plain.memory.workspace_bytes + 160
    assert selective.transient_bytes == 0


def test_layers_that_do_not_offer_it_keep_everything() -> None:
    problem = problem_of()
    table = problem.profiles[0].tables[0]
    silent = {
        name: replace(cost, selective_activation_bytes=None, selective_recompute_s=0.0)
        for name, cost in table.layers.items()
    }
    other = replace(problem, profiles=(replace(problem.profiles[0], tables=(replace(table, layers=silent),)),))
    selective = stage_of(other, recomputation=Recomputation.SELECTIVE)
    assert (selective.kept_bytes, selective.seconds) == (800, stage_of(other).seconds)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_without_sequence_parallelism_norms_are_kept_whole(tensor: int) -> None:
    """Per layer 400 bytes: 80 whole on every member, 320 divided; selective 160 of them."""
    problem = problem_of(tensor=tensor, sequence_parallel=False)
    assert stage_of(problem, tensor=tensor).kept_bytes == 2 * (80 + 320 // tensor)
    selective = stage_of(problem, tensor=tensor, recomputation=Recomputation.SELECTIVE)
    assert selective.kept_bytes == 2 * (80 + 160 // tensor)
    full = stage_of(problem, tensor=tensor, recomputation=Recomputation.FULL)
    assert full.kept_bytes == 4 * 8
    with_it = stage_of(problem_of(tensor=tensor), tensor=tensor, recomputation=Recomputation.FULL)
    assert with_it.kept_bytes == 4 * 8 // tensor


def test_a_table_of_a_tensor_degree_counts_one_member() -> None:
    problem = problem_of(tensor=4, sequence_parallel=False)
    table = problem.profiles[0].tables[0]
    per_member = {
        name: replace(cost, activation_bytes=100, selective_activation_bytes=60, sequence_activation_bytes=20)
        for name, cost in table.layers.items()
    }
    profile = replace(problem.profiles[0], tables=(replace(table, tensor=4, layers=per_member),))
    assert stage_of(replace(problem, profiles=(profile,)), tensor=4).kept_bytes == 2 * (80 + 80)


def test_resharding_gathers_for_every_pass_and_holds_a_share() -> None:
    problem = problem_of()
    bandwidth, latency = route(problem)
    gather, plain = 3 * (latency + 1600 / 4 / bandwidth), stage_of(problem, 4)
    sharded, held = stage_of(problem, 4, zero=3), stage_of(problem, 4, zero=3, reshard=False)
    assert (sharded.memory.weights_bytes, held.memory.weights_bytes) == (400, 1600)
    assert (sharded.memory.gradients_bytes, held.memory.gradients_bytes) == (400, 400)
    assert (sharded.memory.buffers_bytes, held.memory.buffers_bytes) == (800, 0)  # one gathered layer
    experts = stage_of(problem, 4, zero=3, expert=2).memory
    assert experts.buffers_bytes == 160 + 640 // 2
    assert sharded.seconds.forward_s == pytest.approx(plain.seconds.forward_s + gather)
    assert held.seconds.forward_s == plain.seconds.forward_s
    assert sharded.seconds.all_reduce_s == 0
    assert held.seconds.all_reduce_s == pytest.approx(gather)
    scatter = gather  # gradients and weights have as many bytes
    assert sharded.seconds.backward_s == pytest.approx(plain.seconds.backward_s + gather + scatter)
    assert held.seconds.backward_s == pytest.approx(plain.seconds.backward_s + scatter)


@pytest.mark.parametrize(("zero", "share"), [(0, 1), (1, 4), (3, 4)])
def test_an_offloaded_optimizer_moves_gradients_down_and_weights_up(zero: int, share: int) -> None:
    problem = problem_of(host=500.0, offload_optimizer=True)
    stage, plain = stage_of(problem, 4, zero=zero), stage_of(problem_of(), 4, zero=zero)
    assert (stage.memory.optimizer_bytes, plain.memory.optimizer_bytes) == (0, 3200 // share)
    assert stage.memory.weights_bytes == plain.memory.weights_bytes
    assert stage.seconds.optimizer_s == pytest.approx(plain.seconds.optimizer_s + (1600 + 1600) / share / 500.0)


def test_offloading_experts_moves_the_ones_that_are_held() -> None:
    problem = problem_of(host=500.0, offload_optimizer=True)
    stage, plain = (stage_of(p, 4, expert=2) for p in (problem, problem_of()))
    assert stage.seconds.optimizer_s == pytest.approx(plain.seconds.optimizer_s + 2 * (320 + 640) / 500.0)


def test_offload_without_a_host_link_is_refused() -> None:
    with pytest.raises(InputError, match="'gpu' has no host_bandwidth_bytes_per_s, which offload_optimizer needs"):
        stage_of(problem_of(offload_optimizer=True))


def test_inference_has_degrees_too() -> None:
    problem = replace(problem_of(), workload=Inference(global_batch_size=8, microbatch_size=4))
    stage = stage_of(problem, 2, context=2, expert=2)
    bandwidth, latency = route(problem)
    exchanged = 2 * (latency + 2 * 4 * 48 / 4 / 2 / bandwidth) + latency + 2 * 4 * 32 / 2 / 2 / bandwidth
    assert stage.seconds.forward_s == pytest.approx(8.0 / 4 + exchanged)
    assert (stage.seconds.backward_s, stage.seconds.all_reduce_s) == (0.0, 0.0)


def test_collectives_by_hand() -> None:
    problem = problem_of()
    found = problem.network.route("d0", "d1")
    assert found is not None
    assert all_to_all_s(800.0, 4, found) == pytest.approx(3 * found.latency_s + 600 / found.bandwidth_bytes_per_s)
    assert all_to_all_s(0.0, 4, found) == all_to_all_s(800.0, 1, None) == 0.0
    assert ring_gather_s(800.0, 4, found) == ring_all_reduce_s(800.0, 4, found) / 2


@pytest.mark.parametrize(
    ("layer", "cost", "words"),
    [
        (
            {"expert_parameter_bytes": 801},
            {},
            "expert_parameter_bytes .a part of those that are not replicated. is 801",
        ),
        ({"expert_dispatch_bytes_per_sample": -1}, {}, "expert_dispatch_bytes_per_sample is -1"),
        ({"kv_bytes_per_token": -1}, {}, "kv_bytes_per_token is -1"),
        ({}, {"selective_activation_bytes": 401}, "selective_activation_bytes .a part of activation_bytes. is 401"),
        ({}, {"selective_recompute_s": 4.5}, "selective_recompute_s .a part of forward_s. is 4.5"),
        ({}, {"sequence_activation_bytes": 241}, "sequence_activation_bytes .a part of what is kept"),
    ],
)
def test_impossible_parts_are_refused(layer: dict[str, int], cost: dict[str, float], words: str) -> None:
    problem = problem_of()
    table = problem.profiles[0].tables[0]
    changed: LayerCost = replace(table.layers["L0"], **cost)  # type: ignore[arg-type]
    first: Layer = replace(problem.graph.layers[0], **layer)  # type: ignore[arg-type]
    tables = (replace(table, layers=table.layers | {"L0": changed}),)
    with pytest.raises(InputError, match=words):
        replace(
            problem,
            graph=replace(problem.graph, layers=(first, problem.graph.layers[1])),
            profiles=(replace(problem.profiles[0], tables=tables),),
        )


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"context": 9}, "context degree .bounded by the number of devices. is 9"),
        ({"expert": 0}, "expert degree .bounded by the number of devices. is 0"),
        ({"tensor": 4, "context": 4}, "tensor degree 4 x context degree 4 is more than the 8 devices"),
    ],
)
def test_degrees_that_the_cluster_cannot_hold_are_refused(workload: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        problem_of(**workload)


@given(
    replicas=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2]),
    zero=st.integers(0, 3),
    recomputation=st.sampled_from(Recomputation),
    reshard=st.booleans(),
)
def test_all_intervals_at_once_have_the_same_prices(
    replicas: int, context: int, expert: int, zero: int, recomputation: Recomputation, *, reshard: bool
) -> None:
    problem = problem_of()
    prices = layer_prices(problem, "gpu", 4 / (replicas * context), 1)
    arrays = interval_parts(problem, prices, 4)
    found = problem.network.route("d0", "d1")
    setting = StageSetting(
        device_type="gpu",
        tensor=1,
        replicas=replicas,
        sharers=replicas,
        zero=zero,
        recomputation=recomputation,
        group_route=None,
        replica_route=found if replicas * context > 1 else None,
        context=context,
        expert=expert if replicas * context % expert == 0 else 1,
        reshard=reshard,
        context_route=found if context > 1 else None,
        expert_route=found,
        expert_replica_route=found,
    )
    seconds, memory = stage_seconds(problem, arrays, setting), stage_memory(problem, arrays, setting, 3)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        one = parts_of(problem, prices, range(i, j), 4)
        for name in StageParts.__dataclass_fields__:
            assert getattr(arrays, name)[i, j] == getattr(one, name), name
        single = stage_seconds(problem, one, setting)
        for name in ("forward_s", "backward_s", "all_reduce_s", "optimizer_s"):
            assert getattr(seconds, name)[i, j] == pytest.approx(getattr(single, name)), name
        for name, value in stage_memory(problem, one, setting, 3).items():
            assert memory[name][i, j] == value, name


def test_shared_experts_are_counted_once_as_experts() -> None:
    """Two layers of 160 dense and 640 expert bytes that share 40 dense (8 of them copied) and 600 expert bytes."""
    problem = problem_of()
    problem = problem.with_workload(replace(problem.workload, expert=2))
    shared = TiedParameters(
        layers=("L0", "L1"), parameter_bytes=640, replicated_parameter_bytes=8, expert_parameter_bytes=600
    )
    layers = tuple(replace(layer, replicated_parameter_bytes=16) for layer in problem.graph.layers)
    problem = replace(problem, graph=replace(problem.graph, layers=layers, tied=(shared,)))
    prices = layer_prices(problem, "gpu", 4, 1)
    parts = parts_of(problem, prices, range(2), 4)
    assert (parts.parameter_bytes, parts.trainable_bytes) == (960, 960)
    assert (parts.replicated_bytes, parts.trainable_replicated_bytes) == (24, 24)
    assert (parts.expert_bytes, parts.trainable_expert_bytes) == (680, 680)
    stage = Stage(layers=("L0", "L1"), replicas=(("d0",), ("d1",)), expert=2)
    plan = Plan(stages=(stage,), microbatch_size=4, num_microbatches=2, schedule="1f1b")
    assert CostModel(problem).price(plan).stages[0].memory.weights_bytes == 960 - 680 // 2


@pytest.mark.parametrize(
    ("tied", "words"),
    [
        ({"parameter_bytes": 200}, "layer 'L0' shares 200 bytes of dense parameters in its tied sets, but has 160"),
        (
            {"parameter_bytes": 700, "expert_parameter_bytes": 641},
            "layer 'L0' shares 641 bytes of expert parameters in its tied sets, but has 640",
        ),
        (
            {"parameter_bytes": 4, "replicated_parameter_bytes": 4},
            "layer 'L0' shares 4 bytes of replicated parameters in its tied sets, but has 0",
        ),
        (
            {"parameter_bytes": 4, "replicated_parameter_bytes": 5},
            "tied set 0: replicated_parameter_bytes .a part of its parameter_bytes. is 5",
        ),
        (
            {"parameter_bytes": 4, "expert_parameter_bytes": 5},
            "tied set 0: expert_parameter_bytes .a part of those that are not replicated. is 5",
        ),
    ],
)
def test_layers_that_share_more_of_a_kind_than_they_have_are_refused(tied: dict[str, int], words: str) -> None:
    problem = problem_of()
    with pytest.raises(InputError, match=words):
        replace(problem, graph=replace(problem.graph, tied=(TiedParameters(layers=("L0", "L1"), **tied),)))


def test_all_tied_sets_of_a_layer_together_share_no_more_than_it_has() -> None:
    problem = problem_of()
    twice = (TiedParameters(layers=("L0", "L1"), parameter_bytes=100),) * 2
    with pytest.raises(InputError, match="shares 200 bytes of dense"):
        replace(problem, graph=replace(problem.graph, tied=twice))
