"""Layouts read back: what an exporter writes has the same stages, and what users run today is read as it is meant."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builders import L, chain_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.exporters import EXPORTERS, ExportContext
from planner.exporters._megatron_layout import decoders_per_rank, layout_faults, read_layout, write_layout
from planner.graph import Layer
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.schedules import SCHEDULES, Placement
from planner.schedules.placement import rank_at
from planner.targets import TARGETS, Cuts
from planner.verify import verify
from planner.workload import Recomputation
from profiles.layouts import LAYOUTS, read_plan

MODEL = ("embed", *(f"layers.{number}" for number in range(8)), "head")
CASES = Path(__file__).parents[1] / "instances" / "cases" / "cases_handed.json"


def problem_of(devices: int, *, batch: int = 16, inference: bool = False) -> Problem:
    """A chain of an embedding, eight blocks with routed experts, a head and a loss, on devices of two nodes."""
    made = chain_problem(
        [L(f=1.0, b=2.0, p=4)] * len(MODEL), devices=devices, microbatches=batch, names=MODEL, inference=inference
    )
    first, *inner, last = made.graph.layers
    routed = (replace(layer, expert_parameter_bytes=layer.parameter_bytes) for layer in inner)
    layers = (first, *routed, replace(last, entry="norm"))
    workload = replace(made.workload, microbatch_size=None)
    return replace(made, graph=replace(made.graph, layers=layers), workload=workload)


def test_h17_three_layouts() -> None:
    case = next(case for case in json.loads(CASES.read_text()) if case["id"] == "H17")
    right = case["expect"]
    for number, layout in enumerate(case["input"]["layouts"]):
        chunks = read_layout(layout["s"])
        faults = layout_faults(
            chunks, pipeline_size=layout["pp"], virtual=layout["vpp"], num_layers=layout["layers"], mtp=layout["mtp"]
        )
        assert (not faults) == right["valid"][number]
        assert len(chunks) == right["stages"][number]
        assert "".join(chunks).count("t") == right["decoders"][number]
        if right["decoders_per_rank"][number] is not None:
            assert decoders_per_rank(chunks, layout["pp"]) == right["decoders_per_rank"][number]
    assert faults == ["31 chunks instead of 32", "59 decoders instead of 61"]
    assert " and ".join(faults) == right["reason_third"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_written_layouts_are_read_again(counts: list[int]) -> None:
    chunks = ["t" * count for count in counts]
    chunks[0] = "E" + chunks[0]
    chunks[-1] += "L"
    assert read_layout(write_layout(chunks)) == tuple(chunks)


@pytest.mark.parametrize("text", ["Etx|L", "E((t)*2|)*2L", "E(tt|)L", "Et*2*3L", "E" + "(t*999999)*999999" + "L", "t*"])
def test_layouts_outside_the_grammar_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="layout"):
        read_layout(text)


@pytest.mark.parametrize(
    ("chunks", "fault"),
    [
        (("Et", "tL", "t"), "end with the only L"),
        (("Em", "tL"), "after a multi-token"),
        (("Et", "tm", "mL"), "must be in one"),
        (("Et", "m", "", "L"), "not the last one of its rank"),
    ],
)
def test_faults_of_layouts_are_named(chunks: tuple[str, ...], fault: str) -> None:
    letters = "".join(chunks)
    faults = layout_faults(chunks, pipeline_size=2, virtual=2, num_layers=letters.count("t"), mtp=letters.count("m"))
    assert any(fault in each for each in faults)


@st.composite
def plans_for(draw: st.DrawFn, name: str) -> tuple[Problem, Plan]:
    """A plan that the target allows: any cuts, degrees, level, schedule and batch of those."""
    target = TARGETS[name]
    schedule = draw(st.sampled_from([s for s in target.schedules if s != "dualpipe_v"]))
    placement = SCHEDULES[schedule].placement
    several = schedule in target.several_stages
    ranks = draw(st.integers(1 + several, 4))
    virtual = {Placement.LINE: 1, Placement.V: 2}.get(placement, draw(st.integers(1 + several, 2)))
    replicas = 1 if name == "device_map" else draw(st.integers(1, 2))
    degrees = {decision.value: draw(st.integers(1, 2)) for decision in target.degrees if decision.value != "expert"}
    if "expert" in {decision.value for decision in target.degrees}:
        degrees["expert"] = draw(st.sampled_from([1, replicas * degrees["context"]]))
    group = degrees.get("tensor", 1) * degrees.get("context", 1)
    count = draw(st.sampled_from([12, 24])) if placement is not Placement.V else 24
    problem = problem_of(ranks * replicas * group, batch=replicas * count, inference=not target.trains)
    starts = [p for p, may in enumerate(target.starts(problem.index)) if may and p]
    cuts = draw(st.permutations(starts))[: ranks * virtual - 1]
    bounds = [0, *sorted(cuts), len(MODEL)]
    recomputation = draw(st.sampled_from(target.recomputations))
    zero = draw(st.sampled_from(target.zero if replicas > 1 else target.zero[:1]))  # one replica has nothing to shard
    ids = list(problem.devices)
    groups = [tuple(ids[at : at + group]) for at in range(0, len(ids), group)]
    stages = []
    for number, (a, b) in enumerate(pairwise(bounds)):
        rank = rank_at(placement, number, ranks)
        stages.append(
            Stage(
                layers=MODEL[a:b],
                replicas=tuple(groups[rank * replicas : (rank + 1) * replicas]),
                recomputation=recomputation,
                zero=zero,
                **degrees,
            )
        )
    return problem, Plan(stages=tuple(stages), schedule=schedule, microbatch_size=replicas, num_microbatches=count)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", LAYOUTS.names())
def test_what_is_exported_is_imported_again(name: str, data: st.DataObject) -> None:
    problem, plan = data.draw(plans_for(name))
    assert TARGETS[name].misfit(plan, problem) == ""
    text = EXPORTERS[name].export(ExportContext(problem=problem, plan=plan))
    found = read_plan(text, problem)
    assert found.stages == plan.stages
    assert (found.microbatch_size * found.num_microbatches) == plan.microbatch_size * plan.num_microbatches
    if name not in ("vllm", "device_map"):
        assert found == plan
    assert [v for v in verify(found, problem) if v.code not in ("price", "memory")] == []


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(2, 8), max_size=3, unique=True))
def test_the_comments_of_a_megatron_export_are_true(cuts: list[int]) -> None:
    """Where a comment says what stands for the layout, that alone is read as the same plan."""
    bounds = [0, *sorted(cuts), len(MODEL)]
    stages = tuple(Stage(layers=MODEL[a:b], replicas=((f"d{i}",),)) for i, (a, b) in enumerate(pairwise(bounds)))
    problem = problem_of(len(stages))
    plan = Plan(stages=stages, schedule="1f1b", microbatch_size=1, num_microbatches=16)
    text = EXPORTERS["megatron"].export(ExportContext(problem=problem, plan=plan))
    without = "\n".join(line for line in text.splitlines() if "pipeline-model-parallel-layout" not in line)
    if "# the default split" in text:
        assert read_plan(without, problem) == plan
    elif "# instead of the layout: " in text:
        assert read_plan(without.replace("# instead of the layout: ", ""), problem) == plan


def test_every_engine_has_a_target_an_exporter_and_a_reader() -> None:
    assert set(LAYOUTS.names()) == set(TARGETS) - {"runtime"}
    assert set(LAYOUTS.names()) <= set(EXPORTERS.names())
    assert all(target.cuts in Cuts for target in TARGETS.values())


SCRIPT = """
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
PP=${PP:-4}  # pipeline
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py \\
    --tensor-model-parallel-size 1 --pipeline_model_parallel_size ${PP} \\
    --num-layers 8 --micro-batch-size=2 --global-batch-size 16 --bf16 \\
"""


def layers_per_stage(plan: Plan) -> list[int]:
    """How many blocks every stage has."""
    return [sum(name.startswith("layers.") for name in stage.layers) for stage in plan.stages]


@pytest.mark.parametrize(
    ("more", "blocks"),
    [
        ("", [2, 2, 2, 2]),
        ("--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3", [1, 2, 2, 3]),
        ("--decoder-last-pipeline-num-layers 2", [2, 2, 2, 2]),
        ("--num-layers-per-virtual-pipeline-stage 1", [1] * 8),
        ("--num-virtual-stages-per-pipeline-rank 2", [1] * 8),
        ("--pipeline-model-parallel-layout 'Et*3|t|tt|ttL'", [3, 1, 2, 2]),
    ],
)
def test_scripts_that_users_run_are_read(more: str, blocks: list[int]) -> None:
    plan = read_plan(SCRIPT + more, problem_of(8))
    assert layers_per_stage(plan) == blocks
    assert len(plan.stages[0].replicas) == 2
    assert (plan.microbatch_size, plan.num_microbatches) == (4, 4)
    assert plan.schedule == ("1f1b" if len(blocks) == 4 else "interleaved_1f1b")
    assert verify(plan, problem_of(8)) == ()


@pytest.mark.parametrize(
    ("more", "recomputation"),
    [
        ("", Recomputation.NONE),
        ("--recompute-activations", Recomputation.SELECTIVE),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", Recomputation.FULL),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", Recomputation.FULL),
    ],
)
def test_recomputation_arguments(more: str, recomputation: Recomputation) -> None:
    plan = read_plan(f"{SCRIPT} {more} --use-distributed-optimizer", problem_of(8))
    assert {(stage.recomputation, stage.zero) for stage in plan.stages} == {(recomputation, 1)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SCRIPT.replace("--num-layers 8", "--num-layers 30"), "30 decoder layers, the model has 8"),
        (SCRIPT.replace("--global-batch-size 16", "--global-batch-size 32"), "global batch is 32"),
        (SCRIPT.replace("--micro-batch-size=2", "--micro-batch-size=3"), "do not divide"),
        (SCRIPT.replace("PP:-4", "PP:-3"), "cannot be shared evenly by 3"),
        (SCRIPT.replace("PP:-4", "PP:-99999999"), "between 1 and 10"),
        (SCRIPT.replace("${PP} ", "$UNKNOWN "), "'\\$UNKNOWN'"),
        (SCRIPT + "'", "close every quote"),
        (SCRIPT + "--pipeline-model-parallel-layout 'Ett|tttL'", "2 chunks instead of 4; 5 decoders instead of 8"),
        (
            SCRIPT + "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
            "1 of 2 layers",
        ),
        ("VLLM_PP_LAYER_PARTITION=5,4", "9 decoder layers, the model has 8"),
        ("VLLM_PP_LAYER_PARTITION=4,x", "'x'"),
        ("VLLM_PP_LAYER_PARTITION=99999999,99999999", "between 0 and all"),
        ("[parallelism]\npipeline_parallel_schedule = 'Magic'", "'Magic'"),
        ("[parallelism]\npipeline_parallel_degree = 0", "between 1 and"),
        ("[parallelism]\nmodule_fqns_per_model_part = [['layers.1']]", "in this order"),
        ("[parallelism]\nx = ", "no TOML"),
        ('{"layers.0": 0}', "places no module of layer 'embed'"),
        ('{"": 99}', "below 8"),
        ('{"embed": 0, "layers": 1, "head": 0}', "two runs"),
        ('{"document": "deepspeed"}', "pipeline is"),
        ("hello", "unknown: name it"),
    ],
)
def test_what_does_not_fit_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_plan(text, problem_of(8))


def test_torchtitans_own_split() -> None:
    text = "[parallelism]\npipeline_parallel_degree = 4\n[training]\nglobal_batch_size = 16\n"
    plan = read_plan(text, problem_of(8))
    assert layers_per_stage(plan) == [2, 3, 2, 1]
    assert {(stage.zero, stage.reshard, len(stage.replicas)) for stage in plan.stages} == {(1, True, 2)}


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_raise_nothing_but_input_errors(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice([name for name in LAYOUTS.names() if TARGETS[name].trains])
    stages = tuple(
        Stage(layers=MODEL[a:b], replicas=((f"d{i}",),)) for i, (a, b) in enumerate([(0, 3), (3, 7), (7, 10)])
    )
    plan = Plan(stages=stages, schedule="1f1b", microbatch_size=1, num_microbatches=16)
    text = list(EXPORTERS[name].export(ExportContext(problem=problem_of(3), plan=plan)))
    for _ in range(rng.randint(1, 6)):
        text[rng.randrange(len(text))] = rng.choice(['"', "0", "9", "[", "]", "{", "}", "-", "|", "*", "(", "\n", "t"])
    try:
        found = LAYOUTS[name].read("".join(text), problem_of(3))
    except InputError:
        return
    assert isinstance(found, Plan)
    verify(found, problem_of(3))


def test_multi_token_prediction_is_a_layer_of_its_own() -> None:
    problem = problem_of(2, batch=2)
    layers = (*problem.graph.layers[:-1], Layer(id="mtp"), problem.graph.layers[-1])
    assert read_layout("Et*4|t*4,mL") == ("Etttt", "ttttmL")
    from profiles.layouts._blocks import stages_of

    chain = chain_problem([L(f=1.0)] * 11, devices=2, microbatches=2, names=[layer.id for layer in layers])
    assert stages_of(("Etttt", "ttttm", "L"), chain.index) == (MODEL[:5], (*MODEL[5:9], "mtp"), ("head",))
