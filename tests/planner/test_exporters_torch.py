"""The torch document against torch itself: split points, order of actions, names of schedules."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from runnable_models import Loader, gpt2_model
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime, get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.cluster import Cluster, Device, DeviceType
from planner.exporters import ExportContext
from planner.exporters.torch_pipelining import torch_document
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.runtime.program import TracedProgram
from planner.runtime.split import split_layers
from planner.workload import Training

MICROBATCH, NUM_MICROBATCHES = 2, 5
CUTS = (2, 4)
TIED = {"model.transformer.wte.weight", "model.lm_head.weight"}


def exported(program: TracedProgram, schedule: str, cuts: tuple[int, int] = CUTS) -> dict[str, Any]:
    """The document of a three-stage plan of the traced model."""
    ids = [layer.id for layer in program.graph.layers]
    ends = (0, *cuts, len(ids))
    stages = tuple(Stage(layers=tuple(ids[ends[i] : ends[i + 1]]), replicas=((f"d{i}",),)) for i in range(3))
    costs = {name: LayerCost(forward_s=1.0, backward_s=2.0) for name in ids}
    problem = Problem(
        graph=program.graph,
        profiles=(Profile(device_type="cpu", tables=(CostTable(microbatch_size=MICROBATCH, layers=costs),)),),
        cluster=Cluster(
            device_types=(DeviceType(name="cpu", memory_bytes=1),),
            devices=tuple(Device(id=f"d{i}", type="cpu") for i in range(3)),
        ),
        workload=Training(global_batch_size=MICROBATCH * NUM_MICROBATCHES),
    )
    plan = Plan(stages=stages, schedule=schedule, microbatch_size=MICROBATCH, num_microbatches=NUM_MICROBATCHES)
    return torch_document(ExportContext(problem=problem, plan=plan))


@pytest.mark.parametrize(
    ("cuts", "modules"),
    [
        (CUTS, ["model.transformer.h.1", "model.transformer.h.3"]),
        ((2, 5), ["model.transformer.h.1", "model.transformer.ln_f"]),
    ],
    ids=["between blocks", "before the final norm"],
)
def test_torch_cuts_the_model_where_the_plan_does(cuts: tuple[int, int], modules: list[str]) -> None:
    program = Loader("gpt2_model")(MICROBATCH)
    document = exported(program, "1f1b", cuts)
    assert list(document["split_spec"]) == modules
    runnable = gpt2_model()
    spec = {name: SplitPoint[point] for name, point in document["split_spec"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations inside torch.export
        pipe = pipeline(runnable.model.eval(), mb_args=runnable.make_batch(MICROBATCH, 0)[0], split_spec=spec)
    parts = split_layers(program, [stage["layers"] for stage in document["stages"]])
    assert pipe.num_stages == len(parts)
    for number, part in enumerate(parts):
        theirs = {name for name, _ in pipe.get_stage_module(number).named_parameters()} - TIED
        assert theirs == {name for name, _ in part.named_parameters()} - TIED


@pytest.fixture
def stage() -> Iterator[PipelineStage]:
    """Stage 0 of three in a process group of which the other members are not real."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    try:
        yield PipelineStage(torch.nn.Linear(1, 1), 0, 3, torch.device("cpu"))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_torch_reads_the_actions_in_its_own_order(schedule: str, stage: PipelineStage, tmp_path: Path) -> None:
    """But for the last stage: torch 2.13 prints its 1F1B microbatches from 1 on and runs them from 0 on.

    The order that really runs is compared, for all stages, in test_runtime_runs.
    """
    order = exported(Loader("gpt2_model")(MICROBATCH), schedule)["schedule"]
    theirs = get_schedule_class(order["name"])(stage, order["n_microbatches"]).pipeline_order
    table = tmp_path / "order.csv"
    table.write_text(order["compute_only_csv"], encoding="utf-8")
    runtime = _PipelineScheduleRuntime([stage], order["n_microbatches"])
    runtime._load_csv(str(table), format="compute_only")
    assert len(runtime.pipeline_order) == 3
    for rank in range(2):
        expected = [str(action) for action in theirs[rank] if action is not None and action.is_compute_op]
        assert [str(action) for action in runtime.pipeline_order[rank] if action is not None] == expected
