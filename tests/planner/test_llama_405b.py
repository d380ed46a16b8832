"""Llama 3.1 405B as it was trained: calibrated on the 8,192-GPU run, the 16,384-GPU run has to come out.

Llama Team 2024 (arXiv 2407.21783), table 4: TP 8, PP 16, sequences of 8,192, 16 M tokens a batch; DP 64 on 8,192 H100
reaches 430 TFLOP/s a GPU (43 % of the peak), DP 128 on 16,384 reaches 400 (41 %). Twice the replicas mean half the
microbatches per pipeline and thus twice the bubble. Stages: the first holds the embedding alone, the last the head
("we reduce one Transformer layer each from the first and the last stages"), one layer on each of the others.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.costs.model import CostModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.simulation.estimate import simulate_plan
from planner.workload import Training
from profiles.clusters import parse_cluster
from profiles.records import load_record
from profiles.sources import build_problem

PEAK_FLOPS_PER_S = 989e12
TENSOR, RANKS, SEQUENCES, TOKENS = 8, 16, 2048, 8192
LAYERS, HIDDEN, PARAMETERS = 126, 16384, 405.85e9


def problem(num_nodes: int) -> Problem:
    workload = Training(
        global_batch_size=SEQUENCES,
        sequence_length=TOKENS,
        weight_bytes_per_parameter=2.0,
        gradient_bytes_per_parameter=4.0,
        optimizer_bytes_per_parameter=12.0,
        tensor=TENSOR,
        zero=1,
    )
    return build_problem(load_record("llama-3.1-405b"), parse_cluster(f"{num_nodes}x8xH100-80G-SXM"), workload)


def slowed(given: Problem, factor: float) -> Problem:
    """With every pass `factor` times as long."""

    def cost(old: LayerCost) -> LayerCost:
        return replace(
            old,
            forward_s=factor * old.forward_s,
            backward_s=factor * old.backward_s,
            backward_input_s=None,
            backward_weight_s=None,
        )

    def profile(old: Profile) -> Profile:
        tables = (
            CostTable(
                microbatch_size=t.microbatch_size,
                tensor=t.tensor,
                sequence_length=t.sequence_length,
                layers={name: cost(c) for name, c in t.layers.items()},
            )
            for t in old.tables
        )
        return replace(old, tables=tuple(tables))

    return replace(given, profiles=tuple(map(profile, given.profiles)))


def trained_plan(given: Problem) -> Plan:
    """The run's layout: 128 stages on 16 ranks, all other nodes as replicas."""
    names = [layer.id for layer in given.index.layers]
    stages = [names[:1], *([name] for name in names[1 : LAYERS + 1]), names[LAYERS + 1 :]]
    devices = [device.id for device in given.cluster.devices]
    groups = [tuple(devices[i : i + TENSOR]) for i in range(0, len(devices), TENSOR)]
    replicas = len(groups) // RANKS
    return Plan(
        stages=tuple(
            Stage(
                layers=tuple(layers),
                replicas=tuple(groups[s % RANKS * replicas : (s % RANKS + 1) * replicas]),
                tensor=TENSOR,
                zero=1,
            )
            for s, layers in enumerate(stages)
        ),
        schedule="interleaved_1f1b",
        microbatch_size=replicas,
        num_microbatches=SEQUENCES // replicas,
    )


def utilisation(given: Problem) -> float:
    """Model FLOPs of one iteration over what the devices' peak could do in the simulated time."""
    seconds = simulate_plan(given, trained_plan(given), CostModel(given))[1].iteration_time_s
    flops = SEQUENCES * TOKENS * (6 * PARAMETERS + 12 * LAYERS * HIDDEN * TOKENS)
    return flops / (seconds * len(given.cluster.devices) * PEAK_FLOPS_PER_S)


def test_the_larger_run_follows_from_the_smaller_one() -> None:
    small, large = problem(1024), problem(2048)
    low, high = 0.5, 3.0
    for _ in range(10):
        factor = (low + high) / 2
        low, high = (factor, high) if utilisation(slowed(small, factor)) > 0.43 else (low, factor)
    assert utilisation(slowed(small, factor)) == pytest.approx(0.43, abs=0.002)
    assert utilisation(slowed(large, factor)) == pytest.approx(0.41, abs=0.02)
