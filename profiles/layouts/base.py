"""The protocol of layout readers: an engine's file and the problem that it is about in, a plan out.

What they read is untrusted; `verify` says what is wrong with the plan as such. What a file does not say is taken from
the problem: the batch from its workload, the devices in the cluster's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.errors import InputError
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.registry import Registry
from planner.schedules import SCHEDULES
from planner.schedules.placement import rank_at
from planner.workload import Inference, Recomputation, Training

MAX_STAGES = 100_000


class LayoutReader(Protocol):
    """One format. `name` is that of its exporter."""

    name: str

    def sniff(self, text: str) -> bool:
        """Whether the text is in this format. Never raises."""

    def read(self, text: str, problem: Problem) -> Plan:
        """The plan; InputError that names what cannot be read or does not fit the problem."""


LAYOUTS: Registry[LayoutReader] = Registry("layout format", "profiles.layouts")


def read_plan(text: str, problem: Problem, *, format: str | None = None) -> Plan:
    """The plan in an engine's file, in the named format or in the one that it looks like."""
    if format is not None:
        return LAYOUTS[format].read(text, problem)
    for reader in LAYOUTS:
        if reader.sniff(text):
            return reader.read(text, problem)
    raise InputError(f"the format of this layout is unknown: name it, one of {', '.join(LAYOUTS.names())}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What an engine's file says; None where it does not say.

    `stages` are the layer ids of each stage in pipeline order, `microbatch_size` the samples of a replica, `devices`
    their ids by rank. All stages have the same degrees and level: engines have one setting for all.
    """

    stages: tuple[tuple[str, ...], ...]
    pipeline_size: int
    schedule: str = "1f1b"
    replicas: int | None = None
    tensor: int = 1
    context: int = 1
    expert: int = 1
    recomputation: Recomputation = Recomputation.NONE
    zero: int = 0
    reshard: bool = True
    microbatch_size: int | None = None
    global_batch_size: int | None = None
    devices: tuple[str, ...] | None = None


def plan_of(layout: Layout, problem: Problem) -> Plan:
    """The layout as a plan of the problem. InputError where devices or batch do not fit."""
    devices = layout.devices or tuple(problem.devices)
    per_rank = layout.tensor * layout.context
    replicas = layout.replicas or max(1, len(devices) // (layout.pipeline_size * per_rank))
    if layout.pipeline_size * per_rank * replicas > len(devices):
        raise InputError(
            f"the layout needs {layout.pipeline_size} pipeline ranks x {replicas} replicas x {per_rank} devices, and "
            f"the cluster has {len(devices)} devices: give a cluster that is large enough",
            pointer="/cluster",
        )
    groups = [devices[start : start + per_rank] for start in range(0, len(devices), per_rank)]
    placement = SCHEDULES[layout.schedule].placement
    microbatch_size, num_microbatches = _batch(layout, replicas, problem.workload)
    ranks = [rank_at(placement, number, layout.pipeline_size) for number in range(len(layout.stages))]
    return Plan(
        stages=tuple(
            Stage(
                layers=_named(layers, number),
                replicas=tuple(groups[rank * replicas : (rank + 1) * replicas]),
                tensor=layout.tensor,
                context=layout.context,
                expert=layout.expert,
                recomputation=layout.recomputation,
                zero=layout.zero,
                reshard=layout.reshard,
            )
            for number, (layers, rank) in enumerate(zip(layout.stages, ranks, strict=True))
        ),
        schedule=layout.schedule,
        microbatch_size=microbatch_size,
        num_microbatches=num_microbatches,
    )


def _named(layers: tuple[str, ...], number: int) -> tuple[str, ...]:
    if not layers:
        raise InputError(f"stage {number} of the layout holds no layer of this model: give each stage a layer")
    return layers


def _batch(layout: Layout, replicas: int, work: Training | Inference) -> tuple[int, int]:
    """Microbatch size and number of microbatches of the plan; where the file says nothing, the workload's."""
    total = work.global_batch_size
    if layout.global_batch_size not in (None, total):
        raise InputError(
            f"the layout's global batch is {layout.global_batch_size}, the workload's is {total}: give the same",
            pointer="/workload/global_batch_size",
        )
    size = replicas * (layout.microbatch_size or 0) or work.microbatch_size or _size_by_number(work) or replicas
    if size < 1 or total % size:
        raise InputError(
            f"microbatches of {size} samples ({replicas} replicas) do not divide the global batch of {total}: give "
            "another microbatch size or global batch",
            pointer="/workload/global_batch_size",
        )
    return size, total // size


def _size_by_number(work: Training | Inference) -> int | None:
    return None if work.num_microbatches is None else work.global_batch_size // work.num_microbatches
