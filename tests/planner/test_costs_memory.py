"""Memory of a stage by hand: weights, gradients, optimizer, activations, workspace, buffers, ZeRO, recomputation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from strategies import chain_problem, chain_problems

from planner.costs.compute import layer_prices
from planner.costs.intervals import interval_parts
from planner.costs.model import CostModel, PricedStage
from planner.costs.parts import StageParts, parts_of
from planner.graph import Edge, TiedParameters
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.workload import Inference, Recomputation, ReplicaMode


def problem_of(**workload: object) -> Problem:
    """Four layers of 40, 80, 40, 80 parameter bytes, 8 output bytes, 100 kept bytes; microbatches of 2 samples."""
    base = chain_problem(
        [(1.0, 2.0)] * 4,
        devices=4,
        num_microbatches=4,
        microbatch_size=2,
        parameter_bytes=[40, 80, 40, 80],
        output_bytes=[8] * 4,
        activation_bytes=[100] * 4,
        workload=workload,  # type: ignore[arg-type]
    )
    table = base.profiles[0].tables[0]
    costs = {name: replace(c, workspace_bytes=10 * (1 + i)) for i, (name, c) in enumerate(table.layers.items())}
    return replace(base, profiles=(replace(base.profiles[0], tables=(replace(table, layers=costs),)),))


def stages_of(
    problem: Problem, degrees: tuple[int, int] = (1, 1), *, tensor: int = 1, **fields: object
) -> tuple[PricedStage, ...]:
    """Two layers per stage, priced; `fields` are those of Stage."""
    devices = iter(device.id for device in problem.cluster.devices)
    mode = fields.pop("replica_mode", ReplicaMode.SPLIT)
    plan = Plan(
        stages=tuple(
            Stage(
                layers=(f"L{2 * s}", f"L{2 * s + 1}"),
                replicas=tuple(tuple(next(devices) for _ in range(tensor)) for _ in range(degree)),
                tensor=tensor,
                **fields,  # type: ignore[arg-type]
            )
            for s, degree in enumerate(degrees)
        ),
        schedule="1f1b",
        microbatch_size=2,
        num_microbatches=4,
        replica_mode=mode,  # type: ignore[arg-type]
    )
    return CostModel(problem).price(plan).stages


def test_every_part_of_two_stages() -> None:
    first, second = (stage.memory for stage in stages_of(problem_of()))
    assert (first.weights_bytes, first.gradients_bytes, first.optimizer_bytes) == (120, 120, 240)
    assert first.activations_bytes == 2 * 200  # two microbatches in flight
    assert first.workspace_bytes == 20  # the larger of two, not their sum
    assert first.buffers_bytes == 16  # the gradient of two samples of 8 bytes
    assert first.total_bytes == 120 + 120 + 240 + 400 + 20 + 16
    assert second.activations_bytes == 200
    assert second.buffers_bytes == 16  # two samples of 8 bytes received
    assert second.workspace_bytes == 40


def test_bytes_per_parameter_are_explicit() -> None:
    """bf16-like: 30 parameters of 4 bytes each as 2 + 4 + 12 bytes; 4-bit weights are half a byte."""
    first = stages_of(
        problem_of(weight_bytes_per_parameter=2.0, gradient_bytes_per_parameter=4.0, optimizer_bytes_per_parameter=12.0)
    )[0].memory
    assert (first.weights_bytes, first.gradients_bytes, first.optimizer_bytes) == (60, 120, 360)
    assert stages_of(problem_of(weight_bytes_per_parameter=0.5))[0].memory.weights_bytes == 15


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "optimizer"),
    [(0, 120, 120, 240), (1, 120, 120, 120), (2, 120, 60, 120), (3, 60, 60, 120)],
)
def test_zero_stages_divide_by_the_replicas(zero: int, weights: int, gradients: int, optimizer: int) -> None:
    """Rajbhandari et al. 2020: optimizer state, then gradients, then weights."""
    memory = stages_of(problem_of(zero=zero), (2, 2), zero=zero)[0].memory
    assert (memory.weights_bytes, memory.gradients_bytes, memory.optimizer_bytes) == (weights, gradients, optimizer)
    assert memory.activations_bytes == 2 * 100  # split replicas see one of two samples each


def test_rounding_is_up() -> None:
    """30 parameters at a quarter of a byte, divided by two replicas: 3.75 bytes are 4."""
    problem = problem_of(zero=1, optimizer_bytes_per_parameter=0.25)
    assert stages_of(problem, (2, 2), zero=1)[0].memory.optimizer_bytes == 4


def test_dealt_replicas_hold_whole_microbatches() -> None:
    first = stages_of(problem_of(), (2, 1), replica_mode=ReplicaMode.DEALT)[0]
    assert first.in_flight == 2  # ceil(3 / 2)
    assert first.memory.activations_bytes == 2 * 200
    assert first.memory.buffers_bytes == 16


def test_tensor_parallelism_copies_replicated_parameters() -> None:
    problem = problem_of(tensor=2)
    layers = (replace(problem.graph.layers[0], replicated_parameter_bytes=8), *problem.graph.layers[1:])
    mixed = replace(problem, graph=replace(problem.graph, layers=layers))
    first = stages_of(mixed, tensor=2)[0].memory
    assert first.weights_bytes == (120 - 8) // 2 + 8
    assert first.activations_bytes == 2 * 100
    assert first.buffers_bytes == 8


def test_full_recomputation_keeps_inputs_and_one_layer() -> None:
    """Stage 1 keeps its two input tensors (2 samples of 8 bytes each) and recomputes one layer of 100 at a time."""
    problem = problem_of(recomputation=Recomputation.FULL)
    first, second = stages_of(problem, recomputation=Recomputation.FULL)
    assert second.memory.activations_bytes == 1 * 32 + 100
    assert first.memory.activations_bytes == 2 * 16 + 100  # the model's own input is not a tensor of the graph
    assert (second.kept_bytes, second.transient_bytes) == (32, 100)


def test_frozen_layers_hold_weights_only() -> None:
    problem = problem_of()
    layers = (*(replace(x, trainable=False) for x in problem.graph.layers[:2]), *problem.graph.layers[2:])
    frozen = replace(problem, graph=replace(problem.graph, layers=layers))
    first, second = (stage.memory for stage in stages_of(frozen))
    assert (first.weights_bytes, first.gradients_bytes, first.optimizer_bytes) == (120, 0, 0)
    assert first.activations_bytes == 0
    assert first.buffers_bytes == 0  # no gradient comes back
    assert (second.gradients_bytes, second.optimizer_bytes) == (120, 240)


def test_inference_holds_weights_workspace_and_buffers() -> None:
    problem = replace(problem_of(), workload=Inference(global_batch_size=8, microbatch_size=2))
    first, second = (stage.memory for stage in stages_of(problem))
    assert (first.weights_bytes, first.gradients_bytes, first.optimizer_bytes) == (120, 0, 0)
    assert (first.activations_bytes, first.buffers_bytes) == (0, 0)
    assert (second.activations_bytes, second.buffers_bytes) == (0, 16)


def test_tied_parameters_are_counted_once_per_stage() -> None:
    problem = problem_of()
    near = replace(problem.graph, tied=(TiedParameters(layers=("L0", "L1"), parameter_bytes=40),))
    assert stages_of(replace(problem, graph=near))[0].memory.weights_bytes == 80
    far = replace(problem.graph, tied=(TiedParameters(layers=("L0", "L3"), parameter_bytes=40),))
    assert [s.memory.weights_bytes for s in stages_of(replace(problem, graph=far))] == [120, 120]


def test_a_tensor_read_twice_is_received_once() -> None:
    problem = problem_of()
    skip = Edge(source="L1", target="L3", bytes_per_sample=8)
    graph = replace(problem.graph, edges=(*problem.graph.edges, skip))
    assert stages_of(replace(problem, graph=graph))[1].memory.buffers_bytes == 16
    other = replace(graph, edges=(*problem.graph.edges, replace(skip, tensor="other")))
    assert stages_of(replace(problem, graph=other))[1].memory.buffers_bytes == 32


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problem=chain_problems(one_type=True))
def test_all_intervals_at_once_equal_one_stage_at_a_time(problem: Problem) -> None:
    samples = problem.workload.global_batch_size
    prices = layer_prices(problem, "gpu", samples, 1)
    arrays = interval_parts(problem, prices, samples)
    n = len(problem.index)
    for i in range(n):
        for j in range(i + 1, n + 1):
            one = parts_of(problem, prices, range(i, j), samples)
            for name in StageParts.__dataclass_fields__:
                assert getattr(arrays, name)[i, j] == getattr(one, name), name
