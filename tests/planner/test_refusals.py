"""What is refused says by what it can be replaced, and that is never refused itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.long_graphs import long_chain, problem_of
from benchmarks.scaling import recorded
from planner.errors import InputError
from planner.options import Decision, SearchOptions
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.service import plan
from planner.targets import TARGETS
from planner.verify import verify

DENSE = recorded("gpt2-small", 1, 8)
JOINT = SearchOptions(searched=(Decision.RECOMPUTATION, Decision.ZERO), time_limit_s=0.5)


@pytest.mark.parametrize("name", ["milp", "ideal_dp", "order_dp", "hierarchical_dp", "multilevel"])
def test_a_refused_optimizer_names_others_that_search_the_problem(name: str) -> None:
    with pytest.raises(
        InputError, match=f"optimizer {name!r} cannot search this problem: .*; use auto or one of "
    ) as e:
        plan(DENSE, replace(JOINT, optimizer=name))
    named = str(e.value).rpartition(" or one of ")[2].split(", ")
    assert {"chain_dp", "uniform"} <= set(named)
    assert name not in named
    for other in named:
        assert plan(DENSE, replace(JOINT, optimizer=other)).plan is not None


def test_all_reasons_are_said_at_once() -> None:
    with pytest.raises(InputError, match=r"give both .*; ideal_dp minimises throughput in the blocking search model"):
        plan(DENSE, replace(JOINT, optimizer="ideal_dp"))


def test_long_graphs_are_refused_without_counting_their_plans() -> None:
    with pytest.raises(InputError, match=r"more than .* plans; use auto or one of "):
        plan(problem_of(long_chain(20_000), 8), replace(JOINT, optimizer="exhaustive", searched=()))


def test_an_expert_degree_needs_experts() -> None:
    work = replace(DENSE.workload, expert=2)
    with pytest.raises(InputError, match="the expert degree is 2, but no layer of the model has experts: use 1") as e:
        DENSE.with_workload(work)
    assert e.value.pointer == "/workload/expert"
    with pytest.raises(InputError, match="no layer of the model has experts"):
        Problem(graph=DENSE.graph, profiles=DENSE.profiles, cluster=DENSE.cluster, workload=work)


def test_so_does_that_of_a_plan() -> None:
    layers = tuple(layer.id for layer in DENSE.index.layers)
    devices = tuple((device.id,) for device in DENSE.cluster.devices[:2])
    stage = Stage(layers=layers, replicas=devices, expert=2)
    size = DENSE.workload.global_batch_size
    said = verify(Plan(stages=(stage,), schedule="gpipe", microbatch_size=size, num_microbatches=1), DENSE)
    assert [(v.code, v.message) for v in said] == [
        ("degrees", "stage 0 has expert degree 2, but no layer of the model has experts: use 1")
    ]


def test_so_are_large_clusters() -> None:
    with pytest.raises(InputError, match=r"routes of at most 64 devices \(here 128\); use auto or one of "):
        plan(problem_of(long_chain(20), 128), replace(JOINT, optimizer="exhaustive", searched=()))


def test_a_refused_target_names_others_that_are_not() -> None:
    with pytest.raises(InputError, match="cannot express training: use one of the targets ") as e:
        plan(DENSE, replace(JOINT, target="vllm"))
    named = str(e.value).rpartition("use one of the targets ")[2].split(", ")
    assert named
    assert "vllm" not in named
    for other in named:
        assert TARGETS[other].refusal(DENSE, replace(JOINT, target=other)) == ""
