"""`max_kv_tokens`: the partition that holds the most tokens, against brute force with the price of serving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from builders import L, chain_problem, flat_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import Cluster, DeviceType, InputError, Objective, Problem, Replication, SearchOptions, Status
from planner.costs.serving import max_kv_tokens
from planner.plan import Plan, Stage
from planner.service import answer
from planner.verify import verify

TOKENS = SearchOptions(objective=Objective.MAX_KV_TOKENS)


def serving(layers: list[tuple[int, int]], *, cluster: Cluster, size: int = 1) -> Problem:
    """Layers of (parameters of one byte, bytes of keys and values per token)."""
    made = chain_problem(
        [L(f=1, p=p) for p, _ in layers], devices=1, microbatches=2, microbatch_size=size, inference=True
    )
    graph = replace(
        made.graph,
        layers=tuple(
            replace(layer, kv_bytes_per_token=kv) for layer, (_, kv) in zip(made.graph.layers, layers, strict=True)
        ),
    )
    return Problem(
        graph=graph,
        profiles=tuple(replace(made.profiles[0], device_type=kind.name) for kind in cluster.device_types),
        cluster=cluster,
        workload=made.workload,
    )


def transformer(num_layers: int, *, ends: int, devices: int, memory: int) -> Problem:
    """Equal layers of 10 bytes and 1 byte per token between an embedding and a head of `ends` bytes."""
    layers = [(ends, 0), *[(10, 1)] * num_layers, (ends, 0)]
    return serving(layers, cluster=flat_cluster(devices, memory=memory))


def test_a_heavy_embedding_and_head_make_the_even_split_lose() -> None:
    """4 devices of 200 bytes, 12 layers: ends with 2 layers have (200 - 80 - 20) / 2, stages with 4 (200 - 40) / 4."""
    problem = transformer(12, ends=80, devices=4, memory=200)
    found = answer(problem, replace(TOKENS, num_stages=4, replication=Replication.NONE)).result
    assert found.plan is not None
    inner = [len(stage.layers) for stage in found.plan.stages]
    assert [inner[0] - 1, *inner[1:-1], inner[-1] - 1] == [2, 4, 4, 2]
    assert found.report.status is Status.OPTIMAL
    assert found.report.attained is not None
    assert found.report.attained.value == (200 - 4 * 10) // 4 == 40
    even = plan_of(problem, [4, 3, 3, 4], [1] * 4)
    assert max_kv_tokens(problem, even) == (200 - 80 - 30) // 3 == 30


def test_the_even_split_loses_by_more_where_ends_are_heavier() -> None:
    problem = transformer(12, ends=140, devices=4, memory=200)
    found = answer(problem, replace(TOKENS, num_stages=4, replication=Replication.NONE)).result
    even = max_kv_tokens(problem, plan_of(problem, [4, 3, 3, 4], [1] * 4))
    assert even == (200 - 140 - 30) // 3
    assert found.report.attained is not None
    assert found.report.attained.value == (200 - 50) // 5 == 30 > even


def plan_of(problem: Problem, counts: list[int], degrees: list[int]) -> Plan:
    """Stages of so many layers and replicas, devices in listed order."""
    layers, devices = [x.id for x in problem.graph.layers], [d.id for d in problem.cluster.devices]
    stages = []
    for count, degree in zip(counts, degrees, strict=True):
        stages.append(Stage(layers=tuple(layers[:count]), replicas=tuple((d,) for d in devices[:degree])))
        layers, devices = layers[count:], devices[degree:]
    size = problem.workload.microbatch_size or 1
    return Plan(
        stages=tuple(stages),
        schedule="1f1b",
        microbatch_size=size,
        num_microbatches=problem.workload.global_batch_size // size,
    )


@st.composite
def servings(draw: st.DrawFn) -> Problem:
    n = draw(st.integers(1, 5))
    layers = [(draw(st.integers(0, 30)), draw(st.integers(0, 4))) for _ in range(n)]
    if not any(kv for _, kv in layers):
        layers[0] = (layers[0][0], 1)
    kinds = draw(st.sampled_from([("big",), ("big", "small")]))
    cluster = flat_cluster(draw(st.integers(1, 3)))
    memory = {"big": draw(st.integers(20, 120)), "small": draw(st.integers(10, 60))}
    types = tuple(DeviceType(name=kind, memory_bytes=memory[kind]) for kind in kinds)
    devices = tuple(replace(d, type=kinds[i % len(kinds)]) for i, d in enumerate(cluster.devices))
    used = tuple(kind for kind in types if any(d.type == kind.name for d in devices))
    return serving(
        layers, cluster=replace(cluster, device_types=used, devices=devices), size=draw(st.sampled_from([1, 2]))
    )


def all_plans(problem: Problem) -> Iterator[Plan]:
    """Every split into intervals on every choice of devices, equal ones per stage."""
    n, devices = len(problem.graph.layers), [d.id for d in problem.cluster.devices]
    size = problem.workload.microbatch_size or 1
    for stages in range(1, min(n, len(devices)) + 1):
        for ends in combinations(range(1, n), stages - 1):
            counts = [b - a for a, b in zip((0, *ends), (*ends, n), strict=True)]
            for owner in product(range(stages + 1), repeat=len(devices)):
                groups = [[d for d, s in zip(devices, owner, strict=True) if s == stage] for stage in range(stages)]
                if all(groups) and all(size % len(group) == 0 for group in groups):
                    made = plan_of(problem, counts, [1] * stages)
                    yield replace(
                        made,
                        stages=tuple(
                            replace(stage, replicas=tuple((d,) for d in group))
                            for stage, group in zip(made.stages, groups, strict=True)
                        ),
                    )


@given(problem=servings(), num_stages=st.none() | st.integers(1, 3))
@settings(max_examples=60)
def test_as_many_tokens_as_any_plan_holds(problem: Problem, num_stages: int | None) -> None:
    """On equal devices per stage, which the search looks at."""
    if num_stages is not None:
        num_stages = min(num_stages, len(problem.graph.layers), len(problem.cluster.devices))
    kind = {d.id: d.type for d in problem.cluster.devices}
    held = [
        max_kv_tokens(problem, made)
        for made in all_plans(problem)
        if num_stages in (None, len(made.stages))
        and all(len({kind[d] for group in stage.replicas for d in group}) == 1 for stage in made.stages)
        and not verify(made, problem)
    ]
    found = answer(problem, replace(TOKENS, num_stages=num_stages)).result
    if not held:
        assert found.plan is None
        return
    assert found.plan is not None
    assert verify(found.plan, problem) == ()
    assert found.report.attained is not None
    assert found.report.attained.value == max(held) == max_kv_tokens(problem, found.plan)


def test_replicas_hold_their_own_requests() -> None:
    problem = serving([(10, 1)], cluster=flat_cluster(2, memory=60), size=2)
    attained = answer(problem, TOKENS).result.report.attained
    assert attained is not None
    assert (attained.value, attained.proven) == (100, True)


@pytest.mark.parametrize(("layers", "words"), [([(10, 0)], "kv_bytes_per_token")])
def test_a_model_without_keys_and_values_is_refused(layers: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        answer(serving(layers, cluster=flat_cluster(1)), TOKENS)


def test_weights_that_do_not_fit_are_an_answer() -> None:
    found: Any = answer(serving([(100, 1)], cluster=flat_cluster(1, memory=50)), TOKENS).result
    assert found.plan is None
    assert found.report.status is Status.INFEASIBLE
    assert found.report.infeasibility.shortfall_bytes == 50
