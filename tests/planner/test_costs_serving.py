"""Tokens of keys and values that fit: by hand, and against counting up token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import chain_problem

from planner.costs.model import CostModel
from planner.costs.serving import max_kv_tokens
from planner.errors import InputError
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.workload import Inference, Training

KV_BYTES = 6


def problem_of(parameters: list[int], memory: int, *, devices: int = 4, kv: int = KV_BYTES) -> Problem:
    """An embedding and a head without keys and values around equal blocks; one byte per parameter."""
    made = chain_problem(
        [(1.0, 0.0)] * len(parameters),
        devices=devices,
        num_microbatches=4,
        parameter_bytes=parameters,
        memory_bytes=memory,
    )
    inner = range(1, len(parameters) - 1)
    layers = tuple(
        replace(layer, kv_bytes_per_token=kv if i in inner else 0) for i, layer in enumerate(made.graph.layers)
    )
    return replace(
        made,
        graph=replace(made.graph, layers=layers),
        workload=Inference(global_batch_size=4, microbatch_size=1, weight_bytes_per_parameter=1.0),
        profiles=tuple(replace(profile, dtype="int8") for profile in made.profiles),
    )


def plan_of(cuts: list[int], *, tensor: int = 1, degrees: list[int] | None = None) -> Plan:
    """Stages of so many layers each, on as many devices as their degrees take."""
    ids, devices = iter(range(100)), iter(range(100))
    return Plan(
        stages=tuple(
            Stage(
                layers=tuple(f"L{next(ids)}" for _ in range(count)),
                replicas=tuple(tuple(f"d{next(devices)}" for _ in range(tensor)) for _ in range(degree)),
                tensor=tensor,
            )
            for count, degree in zip(cuts, degrees or [1] * len(cuts), strict=True)
        ),
        schedule="gpipe",
        microbatch_size=1,
        num_microbatches=4,
    )


def test_the_tightest_stage_decides() -> None:
    """Stage 0 holds 100 + 2 x 10 of 200 bytes and 2 x 6 bytes per token: 6 tokens; stage 1 20 bytes: 15."""
    problem = problem_of([100, 10, 10, 10, 10, 0], 200)
    plan = plan_of([3, 3])
    static = [stage.memory.total_bytes for stage in CostModel(problem).price(plan).stages]
    assert static == [120, 20]
    assert max_kv_tokens(problem, plan) == min((200 - 120) // 12, (200 - 20) // 12) == 6


def test_a_heavy_embedding_and_head_make_the_even_split_lose() -> None:
    problem = problem_of([100, *[10] * 10, 100], 200)
    even, uneven = plan_of([3, 3, 3, 3]), plan_of([2, 4, 4, 2])
    assert max_kv_tokens(problem, even) == (200 - 120) // 12
    assert max_kv_tokens(problem, uneven) == (200 - 40) // 24 == max_kv_tokens(problem, even)
    fuller = problem_of([150, *[10] * 10, 150], 200)
    assert max_kv_tokens(fuller, even) == (200 - 170) // 12 == 2
    assert max_kv_tokens(fuller, uneven) == (200 - 160) // 6 == 6


@given(
    parameters=st.lists(st.integers(0, 60), min_size=4, max_size=8),
    cut=st.integers(1, 7),
    memory=st.integers(100, 900),
    kv=st.integers(1, 40),
)
def test_equals_counting_up(parameters: list[int], cut: int, memory: int, kv: int) -> None:
    problem = problem_of(parameters, memory, kv=kv)
    plan = plan_of([min(cut, len(parameters) - 1), len(parameters) - min(cut, len(parameters) - 1)])
    stages = CostModel(problem).price(plan).stages
    held = [sum(problem.index.layers[i].kv_bytes_per_token for i in stage.layers) for stage in stages]
    if any(stage.memory.total_bytes > memory for stage in stages):
        with pytest.raises(InputError, match="use more stages or more memory"):
            max_kv_tokens(problem, plan)
        return
    tokens = 0
    while all(s.memory.total_bytes + (tokens + 1) * h <= memory for s, h in zip(stages, held, strict=True)):
        tokens += 1
    assert max_kv_tokens(problem, plan) == tokens


def test_replicas_add_up_and_tensor_degrees_divide() -> None:
    problem = problem_of([20, 40, 40, 20], 200, devices=8)
    assert max_kv_tokens(problem, plan_of([2, 2])) == (200 - 60) // 6
    twice = replace(problem, workload=replace(problem.workload, global_batch_size=8, microbatch_size=2))
    replicated = replace(plan_of([2, 2], degrees=[2, 2]), microbatch_size=2)
    assert max_kv_tokens(twice, replicated) == 2 * ((200 - 60) // 6)
    assert max_kv_tokens(problem, plan_of([2, 2], tensor=2)) == (200 - 30) // 3


def test_what_has_no_answer_is_refused() -> None:
    problem, plan = problem_of([10] * 4, 200), plan_of([2, 2])
    with pytest.raises(InputError, match="no layer of the model has kv_bytes_per_token"):
        max_kv_tokens(problem_of([10] * 4, 200, kv=0), plan)
    with pytest.raises(InputError, match="this workload trains"):
        max_kv_tokens(replace(problem, workload=Training(global_batch_size=4)), plan)
