"""What `ideal_dp` and `order_dp` share: problems that are bottleneck instances, plans of their partitions."""

from __future__ import annotations

from planner.costs.objective import objective_s
from planner.optimizers._chain_space import device_classes
from planner.optimizers._links import uniform_links
from planner.optimizers.base import Candidate, SearchContext
from planner.options import Objective, Replication, SearchModel
from planner.partition.instance import BottleneckInstance, bottleneck_instance
from planner.partition.loads import Bottleneck
from planner.plan import Plan, Stage
from planner.schedules import SCHEDULES, PipelineShape
from planner.workload import Recomputation, ReplicaMode

MAX_LAYERS = 8_000
"""More layers take more than some seconds before the first partition is found."""

SCOPE = "stages of any shape on single devices (no replication)"


def refusal(context: SearchContext, name: str) -> str:
    """Why a search over bottleneck instances cannot work on the problem: an empty string if it can."""
    problem, work = context.problem, context.problem.workload
    if context.options.objective is not Objective.THROUGHPUT or context.search_model is not SearchModel.BLOCKING:
        return f"{name} minimises throughput in the blocking search model only"
    if len(problem.index) > MAX_LAYERS:
        return f"{name} holds tables of the sets of at most {MAX_LAYERS} layers"
    if work.tensor != 1:
        return f"{name} plans single devices, the tensor degree is {work.tensor}"
    if problem.graph.tied:
        return f"{name} does not price tied parameters"
    if problem.training and problem.training.recomputation is not Recomputation.NONE:
        return f"{name} does not price recomputation"
    return "" if uniform_links(problem) else f"{name} needs one bandwidth and latency between all devices"


def covers(context: SearchContext) -> bool:
    """Whether the request allows no replication, so that what is proven here holds for all that it allows."""
    if context.options.replication is Replication.NONE:
        return True
    split = context.options.replica_mode is ReplicaMode.SPLIT
    return all((size if split else count) == 1 for size, count in context.batches())


class BatchSearch:
    """One microbatch size of a request: its instances, and the `candidates` that were kept because they fit."""

    def __init__(self, context: SearchContext, batch: tuple[int, int]) -> None:
        self.context, self.problem = context, context.problem
        self.batch = batch
        self.classes = device_classes(self.problem, 1)
        self.candidates: list[Candidate] = []

    def instance(self, *, whole_memory: bool) -> BottleneckInstance:
        """Seconds per microbatch. Without `whole_memory` a relaxation: one microbatch held, no workspace."""
        return bottleneck_instance(
            self.problem,
            self.context.costs,
            self.batch,
            held=self._held() if whole_memory else 1,
            whole_memory=whole_memory,
            num_stages=self.context.options.num_stages,
        )

    def keep(self, instance: BottleneckInstance, found: Bottleneck) -> bool:
        """Price the plan with the cost model; remember it if it fits."""
        plan = self._plan(instance, found)
        priced = self.context.costs.price(plan)
        if any(stage.memory.total_bytes > stage.memory.limit_bytes for stage in priced.stages):
            return False
        value = objective_s(self.problem, priced, Objective.THROUGHPUT, SearchModel.BLOCKING)
        self.candidates.append(Candidate(plan=plan, objective_s=value))
        return True

    def _held(self) -> int:
        """Microbatches whose activations a stage holds: those of the first of most stages at most."""
        stages = min(len(self.problem.index), sum(len(members) for members in self.classes))
        shape = PipelineShape(
            num_stages=stages,
            num_microbatches=self.batch[1],
            dealt=(1,) * stages,
            forward_only=self.problem.training is None,
        )
        return max(SCHEDULES[self.context.schedules[0]].in_flight(shape, stage) for stage in range(stages))

    def _plan(self, instance: BottleneckInstance, found: Bottleneck) -> Plan:
        """Each stage on the next free device of its class."""
        free = [iter(members) for members in self.classes]
        names = [layer.id for layer in self.problem.index.layers]
        return Plan(
            stages=tuple(
                Stage(layers=tuple(names[i] for i in instance.groups.positions(members)), replicas=(next(free[c]),))
                for c, members in found.stages
            ),
            schedule=self.context.schedules[0],
            microbatch_size=self.batch[0],
            num_microbatches=self.batch[1],
            replica_mode=self.context.options.replica_mode,
        )
