"""Stage seconds and the three search models by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategies import chain_problem

from planner.cluster import DeviceKind
from planner.costs.model import CostModel, PricedPlan
from planner.costs.objective import blocking_ends_s, objective_s, period_s
from planner.errors import InputError
from planner.graph import Edge, TiedParameters
from planner.options import Objective, SearchModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.workload import Inference, Recomputation, ReplicaMode

ITERATION, THROUGHPUT = Objective.ITERATION_TIME, Objective.THROUGHPUT


def problem_of(**fields: object) -> Problem:
    """Three layers; outputs of 32 and 16 bytes per sample on links of 16 B/s; 4 microbatches of 2 samples."""
    return chain_problem(
        [(1.0, 2.0), (2.0, 4.0), (0.5, 1.0)],
        num_microbatches=4,
        microbatch_size=2,
        parameter_bytes=[16, 32, 48],
        output_bytes=[32, 16, 0],
        bandwidth=16.0,
        **{"devices": 4, **fields},  # type: ignore[arg-type]
    )


def plan_of(
    problem: Problem, *layers: str, degrees: tuple[int, ...] = (), tensor: int = 1, **fields: object
) -> PricedPlan:
    """Stages named by digits ("01", "2"), devices in order, priced."""
    devices = iter(device.id for device in problem.cluster.devices)
    mode = fields.pop("mode", ReplicaMode.SPLIT)
    plan = Plan(
        stages=tuple(
            Stage(
                layers=tuple(f"L{digit}" for digit in names),
                replicas=tuple(tuple(next(devices) for _ in range(tensor)) for _ in range(degree)),
                tensor=tensor,
                **fields,  # type: ignore[arg-type]
            )
            for names, degree in zip(layers, degrees or (1,) * len(layers), strict=True)
        ),
        schedule="1f1b",
        microbatch_size=2,
        num_microbatches=problem.workload.global_batch_size // 2,
        replica_mode=mode,  # type: ignore[arg-type]
    )
    return CostModel(problem).price(plan)


def test_closed_counts_transfers_as_latency_only() -> None:
    problem = problem_of()
    priced = plan_of(problem, "0", "12")
    # passes 3 + 7.5; the activation of 64 bytes and its gradient take 4 s each; period 7.5
    assert period_s(problem, priced, SearchModel.CLOSED) == 7.5
    assert objective_s(problem, priced, ITERATION, SearchModel.CLOSED) == 10.5 + 8.0 + 3 * 7.5
    assert objective_s(problem, priced, THROUGHPUT, SearchModel.CLOSED) == 7.5 / 2


def test_blocking_counts_every_tensor_at_both_ends() -> None:
    problem = problem_of()
    priced = plan_of(problem, "0", "1", "2")
    # tensors of 64 and 32 bytes there and back: 8 s and 4 s
    assert blocking_ends_s(problem, priced) == [8.0, 12.0, 4.0]
    assert period_s(problem, priced, SearchModel.BLOCKING) == 18.0
    assert objective_s(problem, priced, ITERATION, SearchModel.BLOCKING) == 10.5 + 12.0 + 3 * 18.0


def test_overlapped_links_are_resources_of_their_own() -> None:
    problem = problem_of()
    priced = plan_of(problem, "0", "12")
    # the link is taken 4 s per direction, less than the 7.5 s of the stage
    assert period_s(problem, priced, SearchModel.OVERLAPPED) == 7.5
    slow = replace(
        problem,
        cluster=replace(
            problem.cluster, links=tuple(replace(x, bandwidth_bytes_per_s=4.0) for x in problem.cluster.links)
        ),
    )
    assert period_s(slow, plan_of(slow, "0", "12"), SearchModel.OVERLAPPED) == 16.0


def test_latency_is_paid_once_per_message_and_occupies_no_link() -> None:
    problem = problem_of(latency_s=0.5)
    priced = plan_of(problem, "0", "12")
    assert objective_s(problem, priced, ITERATION, SearchModel.CLOSED) == 10.5 + 9.0 + 3 * 7.5
    assert blocking_ends_s(problem, priced) == [9.0, 9.0]
    assert period_s(problem, priced, SearchModel.OVERLAPPED) == 7.5


def test_a_tensor_with_two_reading_stages_is_made_once_and_read_twice() -> None:
    problem = problem_of()
    skip = Edge(source="L0", target="L2", bytes_per_sample=32)
    wide = replace(problem, graph=replace(problem.graph, edges=(*problem.graph.edges, skip)))
    priced = plan_of(wide, "0", "1", "2")
    # L0's output (8 s there and back) goes to stages 1 and 2; stage 0 pays it once
    assert blocking_ends_s(wide, priced) == [8.0, 8.0 + 4.0, 4.0 + 8.0]
    assert [(t.source, t.target, t.forward_bytes) for t in priced.transfers] == [(0, 1, 64), (0, 2, 64), (1, 2, 32)]
    # transfers of all three count for the latency of a microbatch
    assert objective_s(wide, priced, ITERATION, SearchModel.CLOSED) == 10.5 + 20.0 + 3 * 6.0


def test_tensors_without_gradient_do_not_come_back() -> None:
    problem = problem_of()
    mask = (replace(problem.graph.edges[0], has_gradient=False), problem.graph.edges[1])
    priced = plan_of(replace(problem, graph=replace(problem.graph, edges=mask)), "0", "12")
    assert (priced.transfers[0].forward_bytes, priced.transfers[0].backward_bytes) == (64, 0)


def test_split_replicas_share_passes_and_transfers_and_sum_gradients() -> None:
    problem = problem_of()
    priced = plan_of(problem, "01", "2", degrees=(2, 2))
    first, second = priced.stages
    # one of two samples each: half the seconds; ring of two: 48 bytes at 16 B/s
    assert (first.pass_s, second.pass_s) == (4.5, 0.75)
    assert (first.seconds.all_reduce_s, second.seconds.all_reduce_s) == (3.0, 3.0)
    assert priced.transfers[0].share == 2
    assert priced.transfers[0].forward_s() == 1.0
    assert objective_s(problem, priced, ITERATION, SearchModel.OVERLAPPED) == 5.25 + 2.0 + 3 * 4.5 + 3.0
    assert objective_s(problem, priced, ITERATION, SearchModel.CLOSED) == 5.25 + 4.0 + 3 * 4.5 + 3.0
    # training throughput carries the tail's share of every microbatch
    assert objective_s(problem, priced, THROUGHPUT, SearchModel.CLOSED) == (4.5 + 3.0 / 4) / 2


def test_dealt_replicas_divide_the_period_and_not_the_pass() -> None:
    problem = problem_of()
    priced = plan_of(problem, "01", "2", degrees=(3, 1), mode=ReplicaMode.DEALT)
    assert priced.stages[0].pass_s == 9.0
    assert period_s(problem, priced, SearchModel.CLOSED) == 3.0
    assert priced.stages[0].seconds.all_reduce_s == 2 * 2 / 3 * 48 / 16
    assert priced.transfers[0].share == 1


@pytest.mark.parametrize(("zero", "once", "per_pass"), [(0, 3.0, 0.0), (1, 3.0, 0.0), (2, 1.5, 1.5), (3, 0.0, 4.5)])
def test_gradient_exchange_under_zero(zero: int, once: float, per_pass: float) -> None:
    """All-reduce = reduce-scatter + all-gather, 1.5 s each. Who keeps a share of the gradients scatters them for every
    microbatch (ZeRO 2 and 3); ZeRO 3 gathers the weights in both passes besides."""
    priced = plan_of(problem_of(workload={"zero": zero}), "01", "2", degrees=(2, 2), zero=zero)
    assert priced.stages[0].seconds.all_reduce_s == once
    assert priced.stages[0].pass_s == 4.5 + per_pass


def test_a_split_backward_scatters_gradients_with_the_weights() -> None:
    """The second stage sends gradients back: its reduce-scatter belongs to W, gathers to I."""
    plain, scattered, gathered = (
        plan_of(problem_of(workload={"zero": zero}), "0", "12", degrees=(1, 2), zero=zero).stages[1]
        for zero in (0, 2, 3)
    )
    assert scattered.seconds.scatter_s == scattered.split.weight_s - plain.split.weight_s > 0
    assert scattered.split.input_s == plain.split.input_s
    assert gathered.split.input_s - plain.split.input_s == gathered.seconds.forward_s - plain.seconds.forward_s > 0


def test_zero_divides_the_optimizer_step() -> None:
    problem = problem_of()
    table = problem.profiles[0].tables[0]
    steps = {name: replace(cost, optimizer_s=1.0) for name, cost in table.layers.items()}
    stepping = replace(problem, profiles=(replace(problem.profiles[0], tables=(replace(table, layers=steps),)),))
    assert plan_of(stepping, "01", "2", degrees=(2, 1)).stages[0].seconds.optimizer_s == 2.0
    assert plan_of(stepping, "01", "2", degrees=(2, 1), zero=1).stages[0].seconds.optimizer_s == 1.0


def test_tensor_groups_sum_activations_in_both_passes() -> None:
    """8 bytes per sample and layer in L0 only: 16 bytes over a ring of two take 1 s; compute halves."""
    problem = problem_of(workload={"tensor": 2})
    layers = (replace(problem.graph.layers[0], tensor_collective_bytes_per_sample=8), *problem.graph.layers[1:])
    grouped = replace(problem, graph=replace(problem.graph, layers=layers))
    first, second = plan_of(grouped, "0", "12", tensor=2).stages
    assert (first.seconds.forward_s, first.seconds.backward_s) == (0.5 + 1.0, 1.0 + 1.0)
    assert second.pass_s == 3.75
    again = plan_of(grouped, "0", "12", tensor=2, recomputation=Recomputation.FULL).stages[0]
    assert again.seconds.backward_s == 2.0 + 1.5


def test_full_recomputation_repeats_the_forward_pass() -> None:
    priced = plan_of(problem_of(), "0", "12", recomputation=Recomputation.FULL)
    assert [s.seconds.backward_s for s in priced.stages] == [3.0, 7.5]


def test_overhead_is_paid_per_action() -> None:
    problem = problem_of()
    heavy = replace(problem, profiles=(replace(problem.profiles[0], action_overhead_s=0.25),))
    assert [s.pass_s for s in plan_of(heavy, "0", "12").stages] == [3.5, 8.0]
    inference = replace(heavy, workload=Inference(global_batch_size=8, microbatch_size=2))
    assert [s.pass_s for s in plan_of(inference, "0", "12").stages] == [1.25, 2.75]


def test_tied_gradients_are_summed_between_the_stages_that_hold_them() -> None:
    problem = problem_of()
    graph = replace(problem.graph, tied=(TiedParameters(layers=("L0", "L2"), parameter_bytes=16),))
    tied = replace(problem, graph=graph)
    assert [s.tied_s for s in plan_of(tied, "0", "1", "2").stages] == [1.0, 0.0, 1.0]
    assert [s.tied_s for s in plan_of(tied, "012").stages] == [0.0]
    priced = plan_of(tied, "0", "12")
    plain = plan_of(problem, "0", "12")
    assert objective_s(tied, priced, ITERATION, SearchModel.CLOSED) == 1.0 + objective_s(
        problem, plain, ITERATION, SearchModel.CLOSED
    )
    inference = replace(tied, workload=Inference(global_batch_size=8, microbatch_size=2))
    assert [s.tied_s for s in plan_of(inference, "0", "12").stages] == [0.0, 0.0]


def test_a_frozen_first_stage_takes_no_backward_and_no_gradient() -> None:
    problem = problem_of()
    layers = (replace(problem.graph.layers[0], trainable=False), *problem.graph.layers[1:])
    frozen = replace(problem, graph=replace(problem.graph, layers=layers))
    priced = plan_of(frozen, "0", "12")
    assert (priced.stages[0].pass_s, priced.stages[1].pass_s) == (1.0, 7.5)
    assert priced.transfers[0].backward_bytes == 0
    # 10.5 - 2 seconds of passes, one transfer instead of two
    assert objective_s(frozen, priced, ITERATION, SearchModel.CLOSED) == 8.5 + 4.0 + 3 * 7.5


def test_inference_has_forward_passes_only() -> None:
    problem = replace(problem_of(), workload=Inference(global_batch_size=8, microbatch_size=2))
    priced = plan_of(problem, "0", "12", degrees=(2, 1))
    assert objective_s(problem, priced, ITERATION, SearchModel.OVERLAPPED) == (0.5 + 2.5) + 4.0 + 3 * 4.0
    assert objective_s(problem, priced, THROUGHPUT, SearchModel.CLOSED) == 2.5 / 2
    assert all(stage.tail_s == 0.0 for stage in priced.stages)


def test_a_cpu_pays_no_transfer_in_the_blocking_model() -> None:
    problem = problem_of()
    cpu = replace(problem.cluster.device_types[0], kind=DeviceKind.CPU)
    on_cpu = replace(problem, cluster=replace(problem.cluster, device_types=(cpu,)))
    assert blocking_ends_s(on_cpu, plan_of(on_cpu, "0", "12")) == [0.0, 0.0]


def test_an_expert_degree_needs_groups_that_run_a_microbatch_together() -> None:
    problem = problem_of()
    with pytest.raises(InputError, match="stage 0 has expert degree 4, but 1 tensor-parallel groups"):
        plan_of(problem, "012", expert=4)
