"""Exporters: what the documents say, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest

from planner.cluster import Cluster, Device, DeviceType
from planner.errors import ExportError, InputError
from planner.exporters import EXPORTERS, ExportContext
from planner.graph import Edge, Layer, LayerGraph
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.targets import TARGETS
from planner.timeline import Lane, Span, Timeline
from planner.workload import Inference, ReplicaMode, Training

LAYERS = ("embed", "blocks.0", "blocks.1", "head")


def make_problem(workload: Training | Inference | None = None, layers: tuple[str, ...] = LAYERS) -> Problem:
    """A chain of four layers on four devices without links."""
    costs = {name: LayerCost(forward_s=1.0, backward_s=2.0) for name in layers}
    return Problem(
        graph=LayerGraph(
            layers=tuple(Layer(id=name, parameter_bytes=4) for name in layers),
            edges=tuple(Edge(source=a, target=b) for a, b in pairwise(layers)),
        ),
        profiles=(Profile(device_type="cpu", tables=(CostTable(microbatch_size=2, layers=costs),)),),
        cluster=Cluster(
            device_types=(DeviceType(name="cpu", memory_bytes=100),),
            devices=tuple(Device(id=f"d{i}", type="cpu") for i in range(4)),
        ),
        workload=workload or Training(global_batch_size=6),
    )


PLAN = Plan(
    stages=(
        Stage(layers=("blocks.0", "embed"), replicas=(("d0",), ("d1",))),
        Stage(layers=("blocks.1", "head"), replicas=(("d2",), ("d3",))),
    ),
    schedule="1f1b",
    microbatch_size=2,
    num_microbatches=3,
)


def exported(plan: Plan = PLAN, **options: Any) -> dict[str, Any]:
    """The torch document of a plan."""
    problem = make_problem(**options)
    values: dict[str, Any] = json.loads(EXPORTERS["torch_pipelining"].export(ExportContext(problem=problem, plan=plan)))
    return values


def test_the_torch_document_says_everything() -> None:
    document = exported()
    assert document["split_spec"] == {"blocks.1": "BEGINNING"}
    assert document["schedule"] == {
        "name": "1F1B",
        "n_microbatches": 3,
        "forward_only": False,
        "compute_only_csv": "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n",
    }
    assert document["microbatch_size_per_rank"] == 1
    assert document["device_mesh"] == {
        "mesh_dim_names": ["pp", "dp"],
        "mesh_shape": [2, 2],
        "devices_by_rank": ["d0", "d1", "d2", "d3"],
    }
    assert [(stage["ranks"], stage["layers"]) for stage in document["stages"]] == [
        ([0, 1], ["embed", "blocks.0"]),
        ([2, 3], ["blocks.1", "head"]),
    ]


def test_tensor_groups_are_a_mesh_dimension() -> None:
    stages = tuple(
        dataclasses.replace(stage, replicas=(tuple(d for (d,) in stage.replicas),), tensor=2) for stage in PLAN.stages
    )
    mesh = exported(dataclasses.replace(PLAN, stages=stages))["device_mesh"]
    assert mesh["mesh_dim_names"] == ["pp", "dp", "tp"]
    assert mesh["mesh_shape"] == [2, 1, 2]


def test_inference_runs_forward_only() -> None:
    schedule = exported(workload=Inference(global_batch_size=6))["schedule"]
    assert schedule["forward_only"]
    assert schedule["compute_only_csv"] == "0F0,0F1,0F2\n1F0,1F1,1F2\n"


def with_stage(number: int, **fields: Any) -> Plan:
    """PLAN with some fields of one stage changed."""
    stages = list(PLAN.stages)
    stages[number] = dataclasses.replace(stages[number], **fields)
    return dataclasses.replace(PLAN, stages=tuple(stages))


SWAPPED = dataclasses.replace(
    PLAN,
    stages=(
        dataclasses.replace(PLAN.stages[0], layers=("embed", "blocks.1")),
        dataclasses.replace(PLAN.stages[1], layers=("blocks.0", "head")),
    ),
)


@pytest.mark.parametrize(
    ("plan", "message", "pointer"),
    [
        (with_stage(1, replicas=(("d2",),)), "stage 1 has 1 replicas, stage 0 has 2", "/stages/1/replicas"),
        (dataclasses.replace(PLAN, replica_mode=ReplicaMode.DEALT), "stage 0 deals whole", "/replica_mode"),
        (SWAPPED, "stage 0 does not hold 'blocks.0'", "/stages/0/layers"),
        (dataclasses.replace(PLAN, stages=PLAN.stages[::-1]), "stage 0 does not hold 'embed'", "/stages/0/layers"),
        (with_stage(1, context=2), "stage 1 has context degree 2", "/stages/1/context"),
        (with_stage(1, tensor=2), "stage 1 has tensor degree 2 and stage 0 has 1", "/stages/1/tensor"),
    ],
)
def test_what_torch_cannot_express_is_refused(plan: Plan, message: str, pointer: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        exported(plan)
    assert caught.value.pointer == pointer


def test_a_cut_inside_a_module_is_refused() -> None:
    layers = ("embed", "blocks.0", "embed#2", "head")
    plan = with_stage(1, layers=("embed#2", "head"))
    with pytest.raises(ExportError, match="stage 1 starts at 'embed#2', inside the forward of a module"):
        exported(plan, layers=layers)


def test_unknown_exporters_and_schedules_are_named() -> None:
    with pytest.raises(InputError, match="unknown exporter 'yaml': use one of chrome_trace, deepspeed, "):
        EXPORTERS["yaml"]
    with pytest.raises(InputError, match="unknown schedule 'x'"):
        exported(dataclasses.replace(PLAN, schedule="x"))


TIMELINE = Timeline(
    lanes=(
        Lane(
            devices=("d0", "d1"),
            spans=(
                Span(label="0F0", category="compute", start_s=0.0, end_s=0.5),
                Span(label="send 0F0 -> 1", category="transfer", start_s=0.5, end_s=0.75),
            ),
            busy_s=0.5,
            peak_memory_bytes=10,
            peak_in_flight=1,
        ),
        Lane(
            devices=("d2",),
            spans=(
                Span(label="optimizer", category="optimizer", start_s=1.0, end_s=1.5),
                Span(label="1F0", category="compute", start_s=0.75, end_s=1.0),
            ),
            busy_s=0.25,
            peak_memory_bytes=20,
            peak_in_flight=1,
        ),
    ),
    makespan_s=1.5,
    bubble_fraction=0.7,
)


def test_a_trace_has_a_process_per_lane_and_times_in_microseconds() -> None:
    context = ExportContext(problem=make_problem(), plan=PLAN, timeline=TIMELINE)
    document = json.loads(EXPORTERS["chrome_trace"].export(context))
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [
        (names[e["pid"]], threads[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"
    ]
    assert spans == [
        ("d0, d1", "compute", "0F0", 0.0, 500_000.0),
        ("d0, d1", "transfer", "send 0F0 -> 1", 500_000.0, 250_000.0),
        ("d2", "optimizer", "optimizer", 1_000_000.0, 500_000.0),
        ("d2", "compute", "1F0", 750_000.0, 250_000.0),
    ]
    assert document["otherData"] == {"makespan_s": 1.5, "bubble_fraction": 0.7}


def test_a_trace_needs_a_timeline() -> None:
    with pytest.raises(ExportError, match="no timeline"):
        EXPORTERS["chrome_trace"].export(ExportContext(problem=make_problem(), plan=PLAN))


def test_every_exporter_describes_its_text() -> None:
    context = ExportContext(problem=make_problem(), plan=PLAN, timeline=TIMELINE)
    kinds = {"json": "application/json", "toml": "application/toml", "sh": "text/x-shellscript"}
    for exporter in EXPORTERS:
        assert exporter.media_type == kinds[exporter.file_suffix.rpartition(".")[2]]
        if exporter.name in TARGETS and TARGETS[exporter.name].misfit(PLAN, context.problem):
            continue
        assert exporter.export(context) == exporter.export(context)
