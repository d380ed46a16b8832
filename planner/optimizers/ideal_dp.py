"""`ideal_dp`: dynamic programming over all ideals of the graph (Tarnawski et al. 2020), for the bottleneck.

Minimises the throughput objective in the `blocking` search model over stages of any shape, one device each, on any mix
of device types: which layers form a stage, which type runs it, how many stages there are. The recurrence is in
`planner.partition.exact_pass`. It works as long as the graph has few ideals (chains with skips and short branches).

Exact within its scope, and the value is a lower bound, except where the recurrence has to simplify: then it leaves out
(latency of messages, the backward overhead of stages that only partly run backward, microbatches in flight and
workspace), so that its value is still a lower bound, and the plan is priced by the cost model as always. When the plan
that leaves memory out does not fit, a second pass counts all of it and finds a plan that fits; it may not be optimal.
"""

from __future__ import annotations

import math

from planner.costs.objective import objective_s
from planner.errors import LimitError
from planner.ideals import Groups, enumerate_ideals, group_layers
from planner.optimizers._chain_space import device_classes
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext
from planner.optimizers.chain_dp import uniform_links
from planner.options import Objective, Replication, SearchModel
from planner.partition.exact_pass import Bottleneck, min_bottleneck
from planner.partition.instance import bottleneck_instance
from planner.plan import Plan, Stage
from planner.schedules import SCHEDULES, PipelineShape
from planner.workload import Recomputation, ReplicaMode

MAX_IDEALS = 40_000
"""Where a search takes some 15 seconds of one core (36,596 ideals of 326 layers, 14 classes x counts: 14 s)."""
EXACT = 1 + 1e-9
"""Values closer than this are equal: the recurrence subtracts prefix sums."""
SCOPE = "stages of any shape on single devices (no replication)"


@OPTIMIZERS.register
class IdealDP:
    """Exact on graphs with few ideals, for the bottleneck in `blocking`, on any mix of device types."""

    name = "ideal_dp"

    def supports(self, context: SearchContext) -> str:
        """Throughput in `blocking` between interchangeable links; nothing that couples stages in other ways."""
        problem, work = context.problem, context.problem.workload
        if context.options.objective is not Objective.THROUGHPUT or context.search_model is not SearchModel.BLOCKING:
            return "ideal_dp minimises throughput in the blocking search model only"
        if work.tensor != 1:
            return f"ideal_dp plans single devices, the tensor degree is {work.tensor}"
        if problem.graph.tied:
            return "ideal_dp does not price tied parameters"
        if problem.training and problem.training.recomputation is not Recomputation.NONE:
            return "ideal_dp does not price recomputation"
        return "" if uniform_links(problem) else "ideal_dp needs one bandwidth and latency between all devices"

    def search(self, context: SearchContext) -> Outcome:
        """One pass per microbatch size; a second one where the plan of the first does not fit into memory."""
        groups = group_layers(context.problem.index)
        try:
            ideals = enumerate_ideals(groups, MAX_IDEALS)
        except LimitError as fault:
            return Outcome(candidates=(), exact=False, scope=SCOPE, finished=False, notes=(str(fault),))
        searches = [_Search(context, batch, groups, ideals) for batch in context.batches()]
        found = sorted((c for search in searches for c in search.candidates), key=lambda c: c.objective_s)
        bound = min(search.bound_s for search in searches)
        return Outcome(
            candidates=tuple(found),
            exact=_covers(context)
            and bool(found or math.isinf(bound))
            and (not found or found[0].objective_s <= bound * EXACT),
            scope=SCOPE,
            bound_s=bound if _covers(context) and 0 < bound < math.inf else None,
            finished=all(search.finished for search in searches),
        )


class _Search:
    """One microbatch size: `candidates` that fit (none or one), and a lower bound (infinite: nothing can fit)."""

    def __init__(self, context: SearchContext, batch: tuple[int, int], groups: Groups, ideals: tuple[int, ...]) -> None:
        self.context, self.problem = context, context.problem
        self.samples, self.num_microbatches = batch
        self.groups, self.ideals = groups, ideals
        self.classes = device_classes(self.problem, 1)
        self.candidates: list[Candidate] = []
        relaxed = self._solve(whole_memory=False)
        self.finished = not context.clock.expired() if relaxed is None else relaxed.finished
        self.bound_s = 0.0 if not self.finished else math.inf if relaxed is None else relaxed.value_s / self.samples
        if relaxed is not None and not self._keep(relaxed):
            whole = self._solve(whole_memory=True)
            if whole is not None:
                self._keep(whole)

    def _solve(self, *, whole_memory: bool) -> Bottleneck | None:
        instance = bottleneck_instance(
            self.problem,
            self.context.costs,
            (self.samples, self.num_microbatches),
            held=self._held(whole_memory),
            whole_memory=whole_memory,
        )
        return min_bottleneck(
            self.groups,
            self.ideals,
            instance.classes,
            instance.cuts,
            num_stages=self.context.options.num_stages,
            expired=self.context.clock.expired,
        )

    def _held(self, whole_memory: bool) -> int:
        """Microbatches whose activations a stage holds: one at least, those of the first of most stages at most."""
        if not whole_memory:
            return 1
        stages = min(len(self.groups), sum(len(members) for members in self.classes))
        shape = PipelineShape(
            num_stages=stages,
            num_microbatches=self.num_microbatches,
            dealt=(1,) * stages,
            forward_only=self.problem.training is None,
        )
        return max(SCHEDULES[self.context.schedules[0]].in_flight(shape, stage) for stage in range(stages))

    def _keep(self, solution: Bottleneck) -> bool:
        """Price the plan with the cost model; remember it if it fits."""
        plan = self._plan(solution)
        priced = self.context.costs.price(plan)
        if any(stage.memory.total_bytes > stage.memory.limit_bytes for stage in priced.stages):
            return False
        value = objective_s(self.problem, priced, Objective.THROUGHPUT, SearchModel.BLOCKING)
        self.candidates.append(Candidate(plan=plan, objective_s=value))
        return True

    def _plan(self, solution: Bottleneck) -> Plan:
        """Each stage on the next free device of its class."""
        free = [iter(members) for members in self.classes]
        names = [layer.id for layer in self.problem.index.layers]
        return Plan(
            stages=tuple(
                Stage(layers=tuple(names[i] for i in self.groups.positions(members)), replicas=(next(free[c]),))
                for c, members in solution.stages
            ),
            schedule=self.context.schedules[0],
            microbatch_size=self.samples,
            num_microbatches=self.num_microbatches,
            replica_mode=self.context.options.replica_mode,
        )


def _covers(context: SearchContext) -> bool:
    """Whether the request allows no replication, so that what is proven here holds for all that it allows."""
    if context.options.replication is Replication.NONE:
        return True
    split = context.options.replica_mode is ReplicaMode.SPLIT
    return all((size if split else count) == 1 for size, count in context.batches())
