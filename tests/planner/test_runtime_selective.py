"""Selective recomputation: attention cores are computed again, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from runnable_models import LONG, Loader
from running_plans import GPT2, TIMEOUT_S, checked, cut

from planner.plan import Plan
from planner.runtime import ExecutorKind, run
from planner.runtime.attention_core import RecomputedCore, recompute_cores
from planner.runtime.split import split_layers
from planner.workload import Recomputation

BLOCKS = ("0", "1", "2", "3")
FLOAT_BYTES = 4


def recomputing(plan: Plan, kind: Recomputation = Recomputation.SELECTIVE, zero: int = 0) -> Plan:
    return replace(plan, stages=tuple(replace(stage, recomputation=kind, zero=zero) for stage in plan.stages))


def test_scores_to_values_are_the_core() -> None:
    program = Loader("attention_model")(2)
    (part,) = split_layers(program, [BLOCKS])
    before = {node.target for node in part.graph.nodes}
    recompute_cores(part)
    cores = [module for module in part.modules() if isinstance(module, RecomputedCore)]
    assert len(cores) == len(BLOCKS)
    for core in cores:
        names = [str(node.target).split(".")[1] for node in core.core.graph.nodes if node.op == "call_function"]  # type: ignore[union-attr]
        assert (names[0], names[-1]) == ("matmul", "matmul")
        assert set(names[1:-1]) == {"div", "masked_fill", "softmax"}
    left = {str(node.target) for node in part.graph.nodes}
    assert "aten.softmax.int" in map(str, before)
    assert not left & {"aten.softmax.int", "aten.matmul.default"}


def test_fused_attention_is_left_as_it_is() -> None:
    (part,) = split_layers(Loader("gpt2_model")(2), [GPT2])
    before = part.code
    recompute_cores(part)
    assert part.code == before
    assert "scaled_dot_product_attention" in before


@pytest.mark.parametrize(
    ("plan", "executor"),
    [
        (recomputing(cut(BLOCKS, (2,))), ExecutorKind.TORCH),
        (recomputing(cut(BLOCKS, (2,))), ExecutorKind.OWN),
        (recomputing(cut(BLOCKS, (2,), schedule="zb_h1")), ExecutorKind.OWN),
        (recomputing(cut(BLOCKS, (2,), (2, 1)), zero=3), ExecutorKind.OWN),
    ],
)
def test_it_equals_the_whole_model(plan: Plan, executor: ExecutorKind) -> None:
    checked(plan, "attention_model", executor=executor)


def test_it_keeps_no_scores() -> None:
    """Two blocks per stage and microbatch: without it each keeps scores, masked ones and shares, or some of them."""
    plan = cut(BLOCKS, (2,), schedule="gpipe")
    peaks = [
        run(recomputing(plan, kind), Loader("attention_model"), num_steps=1, timeout_s=TIMEOUT_S).stages[0]
        for kind in Recomputation
    ]
    none, selective, full = (stage.peak_memory_bytes for stage in peaks)
    scores = plan.microbatch_size * LONG * LONG * FLOAT_BYTES
    assert full < selective < none
    kept = 2 * plan.num_microbatches - 1  # the block that is computed again has its own back
    assert none - selective >= kept * scores * 0.9
