"""Llama-3-70B on 64 H100: a feasible plan in seconds, its memory by hand, and an explanation without the options."""

from __future__ import annotations

import pytest

from planner import PlanResult, Problem, SearchOptions, Status, Training
from planner.service import estimate, plan
from profiles.analytic import price
from profiles.clusters import parse_cluster
from profiles.records import load_record

SEQUENCE, HIDDEN, VOCABULARY, FEED_FORWARD, KV_WIDTH = 4096, 8192, 128256, 28672, 1024
TENSOR, BF16 = 8, 2
BLOCK_MATRICES = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_WIDTH + 3 * HIDDEN * FEED_FORWARD
BLOCK_NORMS = 2 * HIDDEN


def problem(tensor: int, zero: int) -> Problem:
    record, cluster = load_record("llama-3-70b"), parse_cluster("8x8xH100-80G-SXM")
    return Problem(
        graph=record.graph,
        profiles=tuple(
            price(record, kind, microbatch_sizes=(1, 2, 4, 8), tensor=tensor) for kind in cluster.device_types
        ),
        cluster=cluster,
        workload=Training(
            global_batch_size=512,
            sequence_length=SEQUENCE,
            weight_bytes_per_parameter=2.0,
            gradient_bytes_per_parameter=4.0,
            optimizer_bytes_per_parameter=12.0,
            tensor=tensor,
            zero=zero,
        ),
    )


@pytest.fixture(scope="module")
def answer() -> PlanResult:
    """Under 1F1B, whose memory the hand calculation is about."""
    return plan(problem(tensor=8, zero=1), SearchOptions(schedule="1f1b"))


def test_the_plan_fits_and_estimate_agrees(answer: PlanResult) -> None:
    assert answer.plan is not None
    assert answer.estimate is not None
    assert all(stage.memory.total_bytes <= stage.memory.limit_bytes for stage in answer.estimate.stages)
    assert answer.plan.microbatch_size * answer.plan.num_microbatches == 512
    assert estimate(problem(tensor=8, zero=1), answer.plan) == answer.estimate
    assert answer.report.gap is not None
    assert answer.report.gap < 0.06


def hand_parameters(layers: tuple[str, ...]) -> int:
    """Parameters that one of the tensor-parallel devices holds: matrices divided by eight, norms whole."""
    total = 0
    for name in layers:
        if name.startswith("model.layers."):
            total += BLOCK_MATRICES // TENSOR + BLOCK_NORMS
        elif "embed" in name:
            total += VOCABULARY * HIDDEN // TENSOR
        elif name != "loss":
            total += VOCABULARY * HIDDEN // TENSOR + HIDDEN  # final norm and output head
    return total


def test_static_memory_is_the_hand_calculation(answer: PlanResult) -> None:
    assert answer.plan is not None
    assert answer.estimate is not None
    blocks = 0
    for stage, priced in zip(answer.plan.stages, answer.estimate.stages, strict=True):
        held = hand_parameters(stage.layers)
        assert priced.memory.weights_bytes == 2 * held
        assert priced.memory.gradients_bytes == 4 * held
        assert priced.memory.optimizer_bytes == -(-12 * held // len(stage.replicas))
        blocks += sum(name.startswith("model.layers.") for name in stage.layers)
    assert blocks == 80


def test_kept_activations_are_the_record_times_the_microbatches_in_flight(answer: PlanResult) -> None:
    """A block keeps a whole number of bytes per token and eighth; the test sums the record by hand."""
    assert answer.plan is not None
    assert answer.estimate is not None
    work = load_record("llama-3-70b").work
    last = len(answer.plan.stages) - 1
    for number, (stage, priced) in enumerate(zip(answer.plan.stages, answer.estimate.stages, strict=True)):
        samples = answer.plan.microbatch_size // len(stage.replicas)
        kept = sum(work[name].activation_bytes for name in stage.layers) * samples / TENSOR
        in_flight = min(answer.plan.num_microbatches, last - number + 1)
        assert priced.in_flight == in_flight
        assert priced.memory.activations_bytes == pytest.approx(in_flight * kept, rel=1e-6)
        boundary = HIDDEN * SEQUENCE * BF16 * answer.plan.microbatch_size // (TENSOR * len(stage.replicas))
        ends = (number > 0) + (number < last)
        assert priced.memory.buffers_bytes == ends * boundary


def test_without_the_options_the_answer_is_an_explained_infeasible() -> None:
    result = plan(problem(tensor=1, zero=0), SearchOptions(time_limit_s=60))
    assert result.report.status is Status.INFEASIBLE
    assert result.report.infeasibility is not None
    assert result.report.infeasibility.shortfall_bytes > 0
    assert "recompute" in result.report.infeasibility.remedy
