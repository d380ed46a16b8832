"""The device grid of a plan: stages down, replicas across. What most pipeline engines can run, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ExportError
from planner.plan import Plan
from planner.workload import ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """`devices[s][r]` is the device group of replica r of stage s; every stage has the same number of replicas.

    Ranks count through a stage before the next one: rank = s * num_replicas + r, the order of a `(pp, dp)` mesh.
    """

    devices: tuple[tuple[tuple[str, ...], ...], ...]

    @property
    def num_stages(self) -> int:
        """Rows of the grid (pipeline degree)."""
        return len(self.devices)

    @property
    def num_replicas(self) -> int:
        """Columns of the grid (replication degree of every stage)."""
        return len(self.devices[0])

    def rank(self, stage: int, replica: int) -> int:
        """The rank that runs this replica of this stage."""
        return stage * self.num_replicas + replica


def grid_of(plan: Plan, engine: str, *, virtual: bool = False) -> Grid:
    """The grid of `plan`; ExportError naming the stage where `engine` could not express it.

    Refused: unequal replication, whole microbatches dealt to several replicas, a microbatch that does not divide by
    the replicas, and devices that run two stages, unless the engine knows `virtual` stages. Rows are stages, also where
    several are on one rank (`Plan.rank_of`).
    """
    grid = Grid(devices=tuple(stage.replicas for stage in plan.stages))
    for number, stage in enumerate(plan.stages):
        if len(stage.replicas) != grid.num_replicas:
            raise ExportError(
                f"stage {number} has {len(stage.replicas)} replicas, stage 0 has {grid.num_replicas}: {engine} needs "
                "the same number in every stage; plan with equal replication",
                pointer=f"/stages/{number}/replicas",
            )
    _refuse_dealt(plan, grid, engine)
    _refuse_shared_devices(grid, engine, virtual)
    return grid


def check_microbatches(plan: Plan, engine: str) -> None:
    """ExportError for 1F1B with fewer microbatches than stages, which torch's schedule refuses."""
    if plan.schedule == "1f1b" and plan.num_microbatches < len(plan.stages):
        raise ExportError(
            f"1f1b has {plan.num_microbatches} microbatches for {len(plan.stages)} stages: {engine} needs at least "
            f"{len(plan.stages)}; use smaller microbatches, fewer stages or the schedule gpipe",
            pointer="/num_microbatches",
        )


def _refuse_dealt(plan: Plan, grid: Grid, engine: str) -> None:
    if grid.num_replicas == 1:
        return
    if plan.replica_mode is not ReplicaMode.SPLIT:
        raise ExportError(
            f"stage 0 deals whole microbatches to its {grid.num_replicas} replicas: {engine} splits every microbatch; "
            "plan with replica mode 'split'",
            pointer="/replica_mode",
        )
    if plan.microbatch_size % grid.num_replicas:
        raise ExportError(
            f"stage 0 splits microbatches of {plan.microbatch_size} samples among {grid.num_replicas} replicas: "
            f"{engine} needs a multiple of {grid.num_replicas}; choose another microbatch size",
            pointer="/microbatch_size",
        )


def _refuse_shared_devices(grid: Grid, engine: str, virtual: bool) -> None:
    owner: dict[str, int] = {}
    for number, replicas in enumerate(grid.devices):
        if virtual and replicas in grid.devices[:number]:
            continue
        for device in (device for group in replicas for device in group):
            if device in owner:
                raise ExportError(
                    f"stage {number} runs on device {device!r}, which runs stage {owner[device]} too: {engine} needs "
                    "devices of its own for every stage and replica",
                    pointer=f"/stages/{number}/replicas",
                )
            owner[device] = number
