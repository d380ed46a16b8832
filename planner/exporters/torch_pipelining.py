"""What `torch.distributed.pipelining` needs to run a plan: split points, schedule, device mesh.

The document is plain JSON, so that it can be read without PipePlan:

    spec = {name: SplitPoint[point] for name, point in document["split_spec"].items()}
    pipe = pipeline(model, mb_args=(x,), split_spec=spec)
    order = document["schedule"]
    schedule = get_schedule_class(order["name"])(stage, order["n_microbatches"], loss_fn=f)

With several stages on a rank (`stages[i]["pp_rank"]`) torch takes their list instead of `stage`.

`schedule.compute_only_csv` is the same order as `_PipelineScheduleRuntime._load_csv(..., format="compute_only")` reads
it: one row per pipeline rank, cells such as `1F0` and `1B0`. Checked with torch 2.13.
"""

from __future__ import annotations

import json
from typing import Any

from planner.costs.model import shape_of
from planner.errors import ExportError
from planner.exporters.base import EXPORTERS, ExportContext
from planner.graph import GraphIndex
from planner.grid import Grid, check_microbatches, grid_of
from planner.plan import Plan
from planner.problem import Problem
from planner.result import SCHEMA_VERSION
from planner.schedules import SCHEDULES, Placement
from planner.targets import PART_SEPARATOR, TARGETS

ENGINE = "torch.distributed.pipelining"
TORCH_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
"""Our names to those that `torch.distributed.pipelining.schedules.get_schedule_class` takes."""
CSV_SCHEDULE = "_PipelineScheduleRuntime"
"""Torch's class that runs any action list: for schedules that torch has no class of its own for."""
SPLIT_POINT = "BEGINNING"


@EXPORTERS.register
class TorchPipelining:
    """Split points, per-rank layers, schedule and `(pp, dp)` mesh; refuses what torch cannot express."""

    name = "torch_pipelining"
    media_type = "application/json"
    file_suffix = ".torch.json"

    def export(self, context: ExportContext) -> str:
        """The document as JSON text; ExportError naming the stage that torch cannot express."""
        return json.dumps(torch_document(context), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def torch_document(context: ExportContext) -> dict[str, Any]:
    """The document as JSON values (see the module's head)."""
    plan, index = context.plan, context.problem.index
    grid = grid_of(plan, ENGINE, virtual=SCHEDULES[plan.schedule].placement is not Placement.LINE)
    check_microbatches(plan, ENGINE)
    _check_zero(plan)
    members = _members(plan)
    ordered = _in_execution_order(plan, index)
    return {
        "document": TorchPipelining.name,
        "schema_version": SCHEMA_VERSION,
        "split_spec": {_split_point(i, ids, index): SPLIT_POINT for i, ids in enumerate(ordered) if i},
        "schedule": _schedule(context.problem, plan),
        "microbatch_size_per_rank": plan.microbatch_size // grid.num_replicas,
        "device_mesh": _mesh(plan, grid, members),
        "stages": [_stage(number, ids, grid, members, plan) for number, ids in enumerate(ordered)],
    }


def _check_zero(plan: Plan) -> None:
    """FSDP inside a pipeline divides the optimizer state alone (`planner.targets`)."""
    known = TARGETS[TorchPipelining.name].zero
    for number, stage in enumerate(plan.stages):
        if stage.zero not in known:
            raise ExportError(
                f"stage {number} has ZeRO stage {stage.zero}, which {ENGINE} cannot express: its pipelines hold whole "
                f"weights and gradients until the last microbatch; plan with --target {TorchPipelining.name}",
                pointer=f"/stages/{number}/zero",
            )


def _members(plan: Plan) -> int:
    """Devices per replica: the tensor degree, which must be the same everywhere."""
    degree = plan.stages[0].tensor
    for number, stage in enumerate(plan.stages):
        for field, value in (("context", stage.context), ("expert", stage.expert)):
            if value != 1:
                raise ExportError(
                    f"stage {number} has {field} degree {value}: the {ENGINE} export knows the dimensions pp, dp and "
                    f"tp; plan with {field} degree 1",
                    pointer=f"/stages/{number}/{field}",
                )
        if stage.tensor != degree or any(len(group) != degree for group in stage.replicas):
            raise ExportError(
                f"stage {number} has tensor degree {stage.tensor} and stage 0 has {degree}: a device mesh needs the "
                "same degree in every stage",
                pointer=f"/stages/{number}/tensor",
            )
    return degree


def _in_execution_order(plan: Plan, index: GraphIndex) -> list[list[str]]:
    """Every stage's layers in execution order; ExportError where the stages are not one interval after the other."""
    order, start = [], 0
    for number, stage in enumerate(plan.stages):
        positions = index.positions(stage.layers)
        expected = range(start, start + len(positions))
        strange = next((want for want, got in zip(expected, positions, strict=True) if want != got), None)
        if strange is not None:
            raise ExportError(
                f"stage {number} does not hold {index.layers[strange].id!r}, which runs before other layers of it: "
                f"{ENGINE} cuts the model in execution order; plan with contiguous stages",
                pointer=f"/stages/{number}/layers",
            )
        order.append([index.layers[i].id for i in positions])
        start += len(positions)
    return order


def _split_point(number: int, ids: list[str], index: GraphIndex) -> str:
    """The module before which stage `number` starts."""
    if PART_SEPARATOR in ids[0]:
        raise ExportError(
            f"stage {number} starts at {ids[0]!r}, inside the forward of a module: {ENGINE} splits only before a "
            "module; profile with whole blocks as layers, or move the cut",
            pointer=f"/stages/{number}/layers/0",
        )
    return index.layers[index.position[ids[0]]].entry or ids[0]


def _schedule(problem: Problem, plan: Plan) -> dict[str, Any]:
    shape = shape_of(problem, plan)
    rows = (",".join(map(str, worker.actions)) for worker in SCHEDULES[plan.schedule].workers(shape))
    return {
        "name": TORCH_SCHEDULES.get(plan.schedule, CSV_SCHEDULE),
        "n_microbatches": plan.num_microbatches,
        "forward_only": shape.forward_only,
        "compute_only_csv": "".join(f"{row}\n" for row in rows),
    }


def _mesh(plan: Plan, grid: Grid, members: int) -> dict[str, Any]:
    by_rank = dict(zip(plan.rank_of, grid.devices, strict=True))
    mesh = {"pp": len(by_rank), "dp": grid.num_replicas} | ({"tp": members} if members > 1 else {})
    devices = [device for rank in sorted(by_rank) for group in by_rank[rank] for device in group]
    return {"mesh_dim_names": list(mesh), "mesh_shape": list(mesh.values()), "devices_by_rank": devices}


def _stage(number: int, ids: list[str], grid: Grid, members: int, plan: Plan) -> dict[str, Any]:
    ranks_per_stage = grid.num_replicas * members
    stage, at = plan.stages[number], plan.rank_of[number]
    return {
        "stage": number,
        "pp_rank": at,
        "ranks": list(range(at * ranks_per_stage, (at + 1) * ranks_per_stage)),
        "layers": ids,
        "recomputation": stage.recomputation.value,
        "zero": stage.zero,
        **({"reshard_after_forward": False} if stage.zero else {}),
    }
