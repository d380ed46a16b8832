"""Who runs what in a run: one process per device, its stages, and its samples of every microbatch."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan import Plan
from planner.workload import ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The processes of a run. `groups[g][r]` is the device group of replica r of group g.

    A group is what a plan calls a rank: the devices of one stage or, with virtual stages, of several. `group_of[s]` is
    that of stage s. Processes ("ranks" of torch) count through a group before the next one; with equal replication this
    is the order of a `(pp, dp)` mesh. `dealt`: replicas take whole microbatches in turn instead of a part of each.
    """

    groups: tuple[tuple[tuple[str, ...], ...], ...]
    group_of: tuple[int, ...]
    microbatch_size: int
    num_microbatches: int
    dealt: bool

    @property
    def num_stages(self) -> int:
        """The number of stages, virtual ones included."""
        return len(self.group_of)

    @property
    def num_ranks(self) -> int:
        """The number of processes."""
        return sum(map(len, self.groups))

    @property
    def equal(self) -> bool:
        """Whether every replica of every stage sees equally many samples of each microbatch."""
        return len({self.local_size(stage) for stage in range(self.num_stages)}) == 1

    def num_replicas(self, stage: int) -> int:
        """Replication degree of a stage."""
        return len(self.groups[self.group_of[stage]])

    def rank(self, stage: int, replica: int) -> int:
        """The process that runs this replica of this stage."""
        group = self.group_of[stage]
        return sum(map(len, self.groups[:group])) + replica

    def seat(self, rank: int) -> tuple[int, int]:
        """The group and the replica of a process."""
        seats = [(group, replica) for group, replicas in enumerate(self.groups) for replica in range(len(replicas))]
        return seats[rank]

    def stages_on(self, rank: int) -> tuple[int, ...]:
        """The stages that a process runs, in pipeline order."""
        group, _ = self.seat(rank)
        return tuple(stage for stage, at in enumerate(self.group_of) if at == group)

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """The processes of all replicas of a stage."""
        return tuple(self.rank(stage, replica) for replica in range(self.num_replicas(stage)))

    def local_size(self, stage: int) -> int:
        """Samples that a replica of the stage works on at once."""
        return self.microbatch_size if self.dealt else self.microbatch_size // self.num_replicas(stage)

    def samples(self, stage: int, replica: int, microbatch: int) -> range:
        """The samples of a microbatch (from 0) that this replica works on; empty where another one has all of them."""
        degree, size = self.num_replicas(stage), self.local_size(stage)
        if not self.dealt:
            return range(replica * size, (replica + 1) * size)
        return range(size if microbatch % degree == replica else 0)

    def share(self, stage: int, replica: int) -> float:
        """The replica's part of all samples of a step."""
        seen = sum(len(self.samples(stage, replica, number)) for number in range(self.num_microbatches))
        return seen / (self.microbatch_size * self.num_microbatches)

    def name(self, rank: int) -> str:
        """A process in words: `rank 1 (stage 1, replica 0, device cpu1)`."""
        group, replica = self.seat(rank)
        stages = self.stages_on(rank)
        word = "stage" if len(stages) == 1 else "stages"
        device = "+".join(self.groups[group][replica])
        return f"rank {rank} ({word} {', '.join(map(str, stages))}, replica {replica}, device {device})"


def layout_of(plan: Plan) -> Layout:
    """The processes of a plan, which must be one that `check_runnable` takes."""
    groups = tuple(dict.fromkeys(stage.replicas for stage in plan.stages))
    dealt = plan.replica_mode is ReplicaMode.DEALT
    return Layout(
        groups=groups,
        group_of=plan.rank_of,
        microbatch_size=plan.microbatch_size,
        num_microbatches=plan.num_microbatches,
        dealt=dealt and any(len(group) > 1 for group in groups),
    )
