"""What an engine cannot express is refused with the stage named, in the words that the search is restricted by."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from builders import L, chain_problem

from planner.errors import ExportError, InputError
from planner.exporters import EXPORTERS, ExportContext
from planner.graph import Edge
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.targets import TARGETS
from planner.workload import Recomputation, ReplicaMode

NAMES = ("embed", "layers.0", "layers.1", "layers.2", "layers.3", "head")
PLAN = Plan(
    stages=(
        Stage(layers=NAMES[:3], replicas=(("d0",), ("d1",))),
        Stage(layers=NAMES[3:], replicas=(("d2",), ("d3",))),
    ),
    schedule="1f1b",
    microbatch_size=2,
    num_microbatches=4,
)


def problem_of(names: tuple[str, ...] = NAMES, *, inference: bool = False) -> Problem:
    made = chain_problem([L(f=1.0)] * len(names), devices=4, microbatches=8, names=names, inference=inference)
    return replace(made, workload=replace(made.workload, microbatch_size=None))


def refused(name: str, plan: Plan, problem: Problem | None = None) -> ExportError:
    problem = problem or problem_of(inference=not TARGETS[name].trains)
    with pytest.raises(ExportError) as caught:
        EXPORTERS[name].export(ExportContext(problem=problem, plan=plan))
    assert TARGETS[name].misfit(plan, problem) != ""
    serves = TARGETS[name].trains if (problem.training is not None) else TARGETS[name].serves
    assert (f"--target {name}" if serves else "use one of the targets") in str(caught.value)
    return caught.value


def with_stage(number: int, **fields: Any) -> Plan:
    stages = list(PLAN.stages)
    stages[number] = replace(stages[number], **fields)
    return replace(PLAN, stages=tuple(stages))


def cut_at(*bounds: int) -> Plan:
    """One device per stage."""
    ends = (0, *bounds, len(NAMES))
    stages = tuple(Stage(layers=NAMES[a:b], replicas=((f"d{i}",),)) for i, (a, b) in enumerate(pairwise(ends)))
    return replace(PLAN, stages=stages)


TRAINERS = ("deepspeed", "megatron", "torchtitan")


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize(
    ("plan", "words", "pointer"),
    [
        (with_stage(1, replicas=(("d2",),)), "stage 1 has 1 replicas instead of 2", "/stages/1/replicas"),
        (
            with_stage(1, recomputation=Recomputation.FULL),
            "stage 1 has another recomputation",
            "/stages/1/recomputation",
        ),
        (with_stage(0, zero=2), "stage 0 has ZeRO stage 2", "/stages/0/zero"),
        (with_stage(1, tensor=2), "stage 1 has tensor degree 2, stage 0 has 1", "/stages/1/tensor"),
        (replace(PLAN, replica_mode=ReplicaMode.DEALT), "stage 0 deals whole microbatches", "/replica_mode"),
        (replace(PLAN, microbatch_size=1, num_microbatches=8), "stage 0 splits 1 samples", "/microbatch_size"),
        (replace(PLAN, schedule="zb_h1"), "the schedule is 'zb_h1'", "/schedule"),
        (replace(PLAN, stages=PLAN.stages[::-1]), "stage 0 is no interval", "/stages/0/layers"),
    ],
)
def test_trainers_refuse(name: str, plan: Plan, words: str, pointer: str) -> None:
    fault = refused(name, plan)
    assert words in str(fault)
    assert fault.pointer == pointer


@pytest.mark.parametrize("zero", [2, 3])
def test_torch_refuses_what_fsdp_does_not_divide_inside_a_pipeline(zero: int) -> None:
    fault = refused("torch_pipelining", with_stage(1, zero=zero))
    assert f"stage 1 has ZeRO stage {zero}, which torch" in str(fault)
    assert fault.pointer == "/stages/1/zero"


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_a_graph_without_blocks_is_refused(name: str) -> None:
    names = ("a", "b", "c", "d", "e", "f")
    stages = (replace(PLAN.stages[0], layers=names[:3]), replace(PLAN.stages[1], layers=names[3:]))
    fault = refused(name, replace(PLAN, stages=stages), problem_of(names))
    assert "stage 0 cannot be cut out" in str(fault)
    assert "one family of blocks" in str(fault)


@pytest.mark.parametrize("name", TRAINERS)
def test_tensors_that_skip_over_layers_are_refused(name: str) -> None:
    problem = problem_of()
    skip = Edge(source="layers.0", target="layers.3", bytes_per_sample=1)
    fault = refused(name, PLAN, replace(problem, graph=replace(problem.graph, edges=(*problem.graph.edges, skip))))
    assert "no chain" in str(fault)


def test_engines_for_serving_refuse_training_and_the_others_inference() -> None:
    for name, target in TARGETS.items():
        if name in EXPORTERS and not (target.trains and target.serves):
            assert "the workload is" in str(refused(name, PLAN, problem_of(inference=target.trains)))


def test_vllm_needs_a_block_in_every_stage() -> None:
    fault = refused("vllm", cut_at(1))
    assert "stage 1 starts at 'layers.0', which leaves a stage without a block" in str(fault)
    assert fault.pointer == "/stages/1/layers/0"
    assert "stage 1 starts at 'head'" in str(refused("vllm", cut_at(5)))


def test_megatron_may_leave_embedding_and_head_alone() -> None:
    plan = replace(cut_at(1, 3, 5), num_microbatches=8, microbatch_size=1)
    text = EXPORTERS["megatron"].export(ExportContext(problem=problem_of(), plan=plan))
    assert "--pipeline-model-parallel-layout 'E|(tt|)*2L'" in text


def test_megatron_interleaves_on_several_ranks_only() -> None:
    assert "not several on several" in str(refused("megatron", replace(PLAN, schedule="interleaved_1f1b")))


def test_a_device_map_has_neither_replicas_nor_parts_of_modules() -> None:
    assert "stage 0 has 2 replicas instead of 1" in str(refused("device_map", PLAN))
    names = ("embed", "layers.0", "embed#2", "layers.1", "layers.2", "head")
    stages = tuple(Stage(layers=layers, replicas=((f"d{i}",),)) for i, layers in enumerate((names[:1], names[1:])))
    fault = refused("device_map", replace(PLAN, stages=stages), problem_of(names, inference=True))
    assert "stage 1 starts at 'layers.0', between two parts of a module" in str(fault)


def test_a_pinned_cut_that_the_target_has_not_is_named_before_the_search() -> None:
    from planner.options import SearchOptions
    from planner.service import plan

    with pytest.raises(InputError, match="the cut before 'head', which leaves a stage without a block"):
        plan(problem_of(inference=True), SearchOptions(target="vllm", cuts=("head",)))
