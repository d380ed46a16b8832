"""Layouts in the documents of the exporter `torch_pipelining`: everything but the replica groups' names is in them."""

from __future__ import annotations

from planner.errors import InputError
from planner.exporters.torch_pipelining import CSV_SCHEDULE, TORCH_SCHEDULES
from planner.exporters.torch_pipelining import TorchPipelining as Exporter
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.workload import Recomputation
from profiles.layouts._documents import Document, is_document
from profiles.layouts.base import LAYOUTS

OUR_SCHEDULES = {theirs: ours for ours, theirs in TORCH_SCHEDULES.items()}


@LAYOUTS.register
class TorchPipelining:
    """Reads stages, devices and schedule; an order that torch has no class for becomes the schedule `custom`."""

    name = Exporter.name

    def sniff(self, text: str) -> bool:
        """A JSON object that says so."""
        return is_document(text, self.name)

    def read(self, text: str, problem: Problem) -> Plan:
        """The plan as it was, level by level."""
        document = Document(text)
        mesh, order = document.inside("device_mesh"), document.inside("schedule")
        sizes = dict(zip(mesh.texts("mesh_dim_names"), mesh.counts("mesh_shape"), strict=False))
        replicas, tensor = max(1, sizes.get("dp", 1)), max(1, sizes.get("tp", 1))
        schedule, actions = _schedule(order)
        microbatches = order.count("n_microbatches")
        size = document.count("microbatch_size_per_rank") * replicas
        if size * microbatches != problem.workload.global_batch_size:
            raise InputError(
                f"the layout has {microbatches} microbatches of {size}, the global batch is "
                f"{problem.workload.global_batch_size}: give the problem that it was made for",
                pointer="/workload/global_batch_size",
            )
        devices = mesh.texts("devices_by_rank")
        return Plan(
            stages=tuple(_stage(each, devices, replicas, tensor) for each in document.objects("stages")),
            schedule=schedule,
            actions=actions,
            microbatch_size=size,
            num_microbatches=microbatches,
        )


def _schedule(order: Document) -> tuple[str, tuple[tuple[str, ...], ...]]:
    name = order.text("name")
    if name == CSV_SCHEDULE:
        rows = order.text("compute_only_csv").splitlines()
        return "custom", tuple(tuple(row.split(",")) for row in rows)
    if name not in OUR_SCHEDULES:
        raise order.fault("name", f"one of {', '.join(OUR_SCHEDULES)}")
    return OUR_SCHEDULES[name], ()


def _stage(found: Document, devices: list[str], replicas: int, tensor: int) -> Stage:
    start = found.count("pp_rank") * replicas * tensor
    mine = devices[start : start + replicas * tensor]
    recomputation = found.text("recomputation")
    if recomputation not in tuple(Recomputation):
        raise found.fault("recomputation", f"one of {', '.join(Recomputation)}")
    return Stage(
        layers=tuple(found.texts("layers")),
        replicas=tuple(tuple(mine[at : at + tensor]) for at in range(0, len(mine), tensor)),
        tensor=tensor,
        recomputation=Recomputation(recomputation),
        zero=found.count("zero"),
        reshard=found.count("zero") < 3 or found.values.get("reshard_after_forward", True) is True,
    )
