"""`ideal_dp`: dynamic programming over all ideals of the graph (Tarnawski et al. 2020), for the bottleneck.

Minimises the throughput objective in the `blocking` search model over stages of any shape, one device each, on any mix
of device types: which layers form a stage, which type runs it, how many stages there are. The recurrence is in
`_ideal_kernel`. It works as long as the graph has few ideals (chains with skips and short branches).

Exact within its scope, and the value is a lower bound, except where the recurrence has to simplify: then it leaves out
(latency of messages, the backward overhead of stages that only partly run backward, microbatches in flight and
workspace), so that its value is still a lower bound, and the plan is priced by the cost model as always. When the plan
that leaves memory out does not fit, a second pass counts all of it and finds a plan that fits; it may not be optimal.
"""

from __future__ import annotations

import math
from fractions import Fraction

from planner.cluster import DeviceKind
from planner.costs.compute import UNSUPPORTED_S
from planner.costs.memory import MAX_DENOMINATOR
from planner.costs.objective import objective_s
from planner.costs.parts import carries_gradient
from planner.errors import LimitError
from planner.ideals import Groups, enumerate_ideals, group_layers, set_of
from planner.optimizers._chain_space import device_classes
from planner.optimizers._ideal_kernel import Bottleneck, Cut, DeviceClass, min_bottleneck
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext
from planner.optimizers.chain_dp import uniform_links
from planner.options import Objective, Replication, SearchModel
from planner.plan import Plan, Stage
from planner.profile import DTYPE_BYTES
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
            bound_s=bound if 0 < bound < math.inf else None,
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
        return min_bottleneck(
            self.groups,
            self.ideals,
            [self._device_class(number, whole_memory) for number in range(len(self.classes))],
            self._cuts(),
            num_stages=self.context.options.num_stages,
            expired=self.context.clock.expired,
        )

    def _device_class(self, number: int, whole_memory: bool) -> DeviceClass:
        """Seconds and bytes per group. `whole_memory` adds what depends on the stage: all it can at most be."""
        problem, device = self.problem, self.classes[number][0][0]
        kind = problem.devices[device].type
        prices = self.context.costs.layer_prices(kind, self.samples, 1)
        held = self._held(whole_memory)
        size = [
            static + held * kept for static, kept in zip(self._static_bytes(kind), prices.activation_bytes, strict=True)
        ]
        work = [
            f + b + o / self.num_microbatches if f < UNSUPPORTED_S else math.inf
            for f, b, o in zip(prices.forward_s, prices.backward_s, prices.optimizer_s, strict=True)
        ]
        passes = 2 if problem.training and all(problem.index.runs_backward) else 1
        return DeviceClass(
            count=len(self.classes[number]),
            work_s=[sum(work[i] for i in members) for members in self.groups.layers],
            size_bytes=[sum(size[i] for i in members) for members in self.groups.layers],
            limit_bytes=problem.memory_limits[device] - (max(prices.workspace_bytes) if whole_memory else 0),
            overhead_s=passes * problem.profile_of[kind].action_overhead_s,
            pays=problem.device_types[kind].kind is not DeviceKind.CPU,
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

    def _static_bytes(self, kind: str) -> list[int]:
        """Per layer: weights, gradients and optimizer state, rounded down (whole bytes are checked on the plan)."""
        work, training = self.problem.workload, self.problem.training
        size = DTYPE_BYTES[self.problem.profile_of[kind].dtype]
        weights = Fraction(work.weight_bytes_per_parameter).limit_denominator(MAX_DENOMINATOR)
        state = Fraction(0)
        if training is not None:
            for value in (training.gradient_bytes_per_parameter, training.optimizer_bytes_per_parameter):
                state += Fraction(value).limit_denominator(MAX_DENOMINATOR)
        return [
            math.floor(layer.parameter_bytes * (weights + (state if layer.trainable else 0)) / size)
            for layer in self.problem.index.layers
        ]

    def _cuts(self) -> list[Cut]:
        """The tensors between groups; those between the same groups are one."""
        route = self._route_bandwidth()
        index, made = self.problem.index, dict[int, Cut]()
        for number, tensor in enumerate(index.tensors):
            groups = set_of({self.groups.of_layer[i] for i in (tensor.source, *tensor.targets)})
            if not groups & groups - 1:
                continue
            num_bytes = self.samples * tensor.bytes_per_sample
            returned = num_bytes if self.problem.training and carries_gradient(index, number) else 0
            here = Cut(
                groups=groups,
                cost_s=(num_bytes + returned) / route,
                received_bytes=num_bytes,
                returned_bytes=returned,
            )
            made[groups] = _sum(made[groups], here) if groups in made else here
        return list(made.values())

    def _route_bandwidth(self) -> float:
        """The one bandwidth between devices; any where there is one device."""
        ids = [group[0] for members in self.classes for group in members]
        route = self.problem.network.route(ids[0], ids[1]) if len(ids) > 1 else None
        return route.bandwidth_bytes_per_s if route else math.inf

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


def _sum(a: Cut, b: Cut) -> Cut:
    return Cut(
        groups=a.groups,
        cost_s=a.cost_s + b.cost_s,
        received_bytes=a.received_bytes + b.received_bytes,
        returned_bytes=a.returned_bytes + b.returned_bytes,
    )
