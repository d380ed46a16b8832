"""Compute prices by hand: affine between measured sizes, visits, tensor tables, frozen layers, inference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategies import chain_problem

from planner.costs.compute import CANNOT_RUN_S, UNSUPPORTED_S, layer_prices
from planner.errors import InputError
from planner.problem import Problem
from planner.profile import CostTable, LayerCost
from planner.workload import Inference

COST = LayerCost(forward_s=1.0, backward_s=2.0, activation_bytes=100, workspace_bytes=30, optimizer_s=0.5)
TWICE = LayerCost(forward_s=1.5, backward_s=3.5, activation_bytes=180, workspace_bytes=40, optimizer_s=0.5)


def with_tables(*tables: CostTable, **workload: object) -> Problem:
    """One layer with these cost tables."""
    base = chain_problem([(1.0, 2.0)], devices=2, num_microbatches=4, parameter_bytes=[8])
    profile = replace(base.profiles[0], tables=tables)
    return replace(base, profiles=(profile,), workload=replace(base.workload, **workload))


def table(size: int, cost: LayerCost, **fields: int) -> CostTable:
    """A table for layer L0."""
    return CostTable(microbatch_size=size, layers={"L0": cost}, **fields)


def test_one_measured_size_scales_in_proportion() -> None:
    prices = layer_prices(with_tables(table(2, COST)), "gpu", 3, 1)
    assert (prices.forward_s, prices.backward_s) == ([1.5], [3.0])
    assert prices.activation_bytes == [150]
    assert prices.optimizer_s == [0.5]  # once per iteration, whatever the samples


@pytest.mark.parametrize(
    ("samples", "forward_s", "backward_s", "activation_bytes"),
    [
        (2, 1.0, 2.0, 100),
        (3, 1.25, 2.75, 140),
        (4, 1.5, 3.5, 180),
        (6, 2.0, 5.0, 260),
        (1, 0.75, 1.25, 60),
        (0.5, 0.625, 0.875, 40),
    ],
)
def test_between_and_beyond_two_measured_sizes_costs_are_affine(
    samples: float, forward_s: float, backward_s: float, activation_bytes: int
) -> None:
    prices = layer_prices(with_tables(table(4, TWICE), table(2, COST)), "gpu", samples, 1)
    assert (prices.forward_s, prices.backward_s) == ([forward_s], [backward_s])
    assert prices.activation_bytes == [activation_bytes]


def test_affine_extension_never_goes_below_zero() -> None:
    steep = LayerCost(forward_s=10.0)
    assert layer_prices(with_tables(table(2, COST), table(4, steep)), "gpu", 1, 1).forward_s == [0.0]


def test_three_sizes_use_the_neighbours() -> None:
    prices = layer_prices(
        with_tables(table(2, COST), table(4, TWICE), table(8, replace(TWICE, forward_s=5.5))), "gpu", 6, 1
    )
    assert prices.forward_s == [3.5]


def test_visits_multiply() -> None:
    problem = with_tables(table(1, COST))
    layer = replace(problem.graph.layers[0], visits=0.25)
    routed = replace(problem, graph=replace(problem.graph, layers=(layer,)))
    prices = layer_prices(routed, "gpu", 1, 1)
    assert (prices.forward_s, prices.backward_s, prices.activation_bytes) == ([0.25], [0.5], [25])
    assert prices.workspace_bytes == [30]


def test_a_measured_tensor_degree_is_read_and_another_divided() -> None:
    measured = table(1, replace(COST, forward_s=0.75), tensor=2)
    problem = with_tables(table(1, COST), measured)
    assert layer_prices(problem, "gpu", 1, 2).forward_s == [0.75]
    divided = layer_prices(with_tables(table(1, COST)), "gpu", 1, 2)
    assert (divided.forward_s, divided.backward_s, divided.optimizer_s) == ([0.5], [1.0], [0.25])
    assert (divided.activation_bytes, divided.workspace_bytes) == ([50], [15])
    with pytest.raises(InputError, match="no costs at tensor degree 4 nor at 1"):
        layer_prices(with_tables(measured), "gpu", 1, 4)


def test_a_frozen_prefix_runs_no_backward_and_keeps_nothing() -> None:
    problem = chain_problem(
        [(1.0, 2.0)] * 3, devices=1, num_microbatches=1, parameter_bytes=[8] * 3, activation_bytes=[4] * 3
    )
    layers = problem.graph.layers
    frozen = (replace(layers[0], trainable=False), layers[1], replace(layers[2], trainable=False))
    costs = {
        n: replace(c, backward_input_s=0.75, optimizer_s=1.0) for n, c in problem.profiles[0].tables[0].layers.items()
    }
    partly = replace(
        problem,
        graph=replace(problem.graph, layers=frozen),
        profiles=(replace(problem.profiles[0], tables=(CostTable(microbatch_size=1, layers=costs),)),),
    )
    prices = layer_prices(partly, "gpu", 1, 1)
    assert prices.forward_s == [1.0, 1.0, 1.0]
    assert prices.backward_s == [0.0, 2.0, 0.75]  # behind something trainable a frozen layer passes gradients on
    assert prices.activation_bytes == [0, 4, 4]
    assert prices.optimizer_s == [0.0, 1.0, 0.0]


def test_inference_has_no_backward_and_keeps_nothing() -> None:
    problem = replace(with_tables(table(1, COST)), workload=Inference(global_batch_size=4))
    prices = layer_prices(problem, "gpu", 1, 1)
    assert (prices.forward_s, prices.backward_s) == ([1.0], [0.0])
    assert (prices.activation_bytes, prices.optimizer_s) == ([0], [0.0])
    assert prices.workspace_bytes == [30]


def test_layers_without_a_cost_cannot_run() -> None:
    base = chain_problem([(1.0, 2.0)] * 2, devices=1, num_microbatches=1)
    only = CostTable(microbatch_size=1, layers={"L0": COST})
    everything = CostTable(microbatch_size=2, layers={"L0": COST, "L1": COST})
    problem = replace(base, profiles=(replace(base.profiles[0], tables=(only, everything)),))
    assert layer_prices(problem, "gpu", 1, 1).forward_s[1] == 0.5  # known at one size: in proportion
    cpu = replace(base.cluster.device_types[0], name="cpu")
    both = replace(
        base,
        cluster=replace(base.cluster, device_types=(*base.cluster.device_types, cpu)),
        profiles=(*base.profiles, replace(base.profiles[0], device_type="cpu", tables=(only,))),
    )
    assert layer_prices(both, "cpu", 1, 1).forward_s == [1.0, UNSUPPORTED_S]
    assert UNSUPPORTED_S > CANNOT_RUN_S


def test_sequence_lengths_are_never_mixed() -> None:
    long, short = table(1, COST, sequence_length=4096), table(1, TWICE, sequence_length=1024)
    with pytest.raises(InputError, match="several sequence lengths"):
        layer_prices(with_tables(long, short), "gpu", 1, 1)
    assert layer_prices(with_tables(long, short, sequence_length=1024), "gpu", 1, 1).forward_s == [1.5]
    with pytest.raises(InputError, match="no costs at sequence length 2048"):
        layer_prices(with_tables(long, short, sequence_length=2048), "gpu", 1, 1)


def late(problem: Problem, samples: float = 1, tensor: int = 1) -> list[int]:
    """Bytes between I and W."""
    return layer_prices(problem, "gpu", samples, tensor).weight_pass_bytes


def test_what_the_weight_pass_waits_for_is_priced_like_what_is_kept() -> None:
    """Affine between sizes, divided where the tables know no tensor degree, once for each visit, rounded up."""
    small, large = replace(COST, weight_pass_bytes=12), replace(TWICE, weight_pass_bytes=20)
    problem = with_tables(table(2, small), table(4, large))
    assert [late(problem, samples) for samples in (2, 3, 4, 6, 1)] == [[12], [16], [20], [28], [8]]
    assert late(problem, 2, 4) == [3]
    assert late(problem, 2, 8) == [2]
    visited = replace(problem.graph.layers[0], visits=0.5)
    assert late(replace(problem, graph=replace(problem.graph, layers=(visited,))), 2) == [6]


def test_nothing_waits_where_nothing_is_known_or_trained() -> None:
    known = replace(COST, weight_pass_bytes=12)
    assert late(with_tables(table(1, COST))) == [0]
    assert late(with_tables(table(1, COST), table(2, known))) == [0]
    problem = with_tables(table(1, known))
    frozen = replace(problem.graph.layers[0], trainable=False)
    assert late(replace(problem, graph=replace(problem.graph, layers=(frozen,)))) == [0]
    assert late(replace(problem, workload=Inference(global_batch_size=4))) == [0]
