"""`hierarchical_dp`: PipeDream's optimizer (Narayanan et al. 2019), exact in the `pipedream` search model.

Works on any graph with few ideals (the paper's antichains), on clusters whose devices form equal units level by level
(devices in nodes, nodes in racks). The recurrence is in `planner.optimizers._levels`: the best pipeline of every part
of the model on one node, then pipelines of such parts over the nodes. Stages are replicated; whole microbatches are
dealt. Like the open optimizer it does not look at memory: a best plan that does not fit is dropped, with a note.
"""

from __future__ import annotations

from planner.costs.objective import objective_s
from planner.costs.stage_costs.hierarchy import unit_sizes
from planner.costs.stage_costs.pipedream import PipeDreamCost
from planner.costs.stage_costs.pipedream_plan import pipedream_cost, pipedream_refusal
from planner.errors import LimitError
from planner.ideals import enumerate_ideals
from planner.optimizers._levels import Levels, NestedStage
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext
from planner.options import Objective, Replication, SearchModel
from planner.plan import Plan, Stage
from planner.verify import verify
from planner.workload import Recomputation, ReplicaMode

MAX_IDEALS = 4_000
"""Some seconds for four devices on one level, and 130 MB per table."""
Placement = tuple[int, int, list[int]]
"""A stage of the plan: columns of the ideals around it, numbers of its devices."""


@OPTIMIZERS.register
class HierarchicalDP:
    """Exact for throughput in the pipedream search model, over replicated stages on every level."""

    name = "hierarchical_dp"
    search_models = (SearchModel.PIPEDREAM,)

    def supports(self, context: SearchContext) -> str:
        """Throughput in `pipedream`, replicas that are dealt whole microbatches, stages of any number."""
        options, training = context.options, context.problem.training
        if context.search_model is not SearchModel.PIPEDREAM or options.objective is not Objective.THROUGHPUT:
            return "hierarchical_dp minimises throughput in the pipedream search model only"
        if options.replication is Replication.EQUAL or options.num_stages is not None:
            return "hierarchical_dp chooses the number of stages and their replication degrees itself"
        if options.replica_mode is not ReplicaMode.DEALT and options.replication is not Replication.NONE:
            return "PipeDream deals whole microbatches to replicas: use replica mode dealt, or no replication"
        if training is not None and training.recomputation is not Recomputation.NONE:
            return "hierarchical_dp does not price recomputation"
        return pipedream_refusal(context.problem)

    def search(self, context: SearchContext) -> Outcome:
        """One table per microbatch size that the workload allows."""
        scope = "replicated stages of any shape, nested in the levels of the cluster, memory aside"
        found = []
        try:
            for batch in context.batches():
                if context.clock.expired():
                    break
                found.append(_search(context, batch))
        except LimitError as fault:
            return Outcome(candidates=(), exact=False, scope=scope, finished=False, notes=(str(fault),))
        wrong = {id(c): violations[0].message for c in found if (violations := verify(c.plan, context.problem))}
        finished = len(found) == len(context.batches())
        least = min(found, key=lambda c: c.objective_s, default=None)
        return Outcome(
            candidates=tuple(sorted((c for c in found if id(c) not in wrong), key=lambda c: c.objective_s)),
            exact=finished and least is not None and id(least) not in wrong,
            scope=scope,
            bound_s=least.objective_s if finished and least is not None else None,
            finished=finished,
            notes=tuple(f"hierarchical_dp does not look at memory or batches: {reason}" for reason in wrong.values()),
        )


def _search(context: SearchContext, batch: tuple[int, int]) -> Candidate:
    cost = pipedream_cost(context.problem, context.costs, batch[0])
    ideals = enumerate_ideals(cost.groups, MAX_IDEALS)
    replicate = context.options.replication is not Replication.NONE
    best = Levels(cost, ideals, replicate=replicate, use_all=False, expired=context.clock.expired).best()
    assert best is not None, "one device alone is always a plan"
    plan = _plan(context, batch, cost, ideals, best[1])
    value = objective_s(context.problem, context.costs.price(plan), Objective.THROUGHPUT, SearchModel.PIPEDREAM)
    return Candidate(plan=plan, objective_s=value)


def _plan(
    context: SearchContext,
    batch: tuple[int, int],
    cost: PipeDreamCost,
    ideals: tuple[int, ...],
    stages: tuple[NestedStage, ...],
) -> Plan:
    names = [layer.id for layer in context.problem.index.layers]
    devices = [device.id for device in context.problem.cluster.devices]
    return Plan(
        stages=tuple(
            Stage(
                layers=tuple(names[i] for i in cost.groups.positions(ideals[end] & ~ideals[start])),
                replicas=tuple((devices[d],) for d in placed),
            )
            for start, end, placed in placed_stages(cost, stages)
        ),
        schedule=context.schedules[0],
        microbatch_size=batch[0],
        num_microbatches=batch[1],
        replica_mode=context.options.replica_mode,
    )


def placed_stages(cost: PipeDreamCost, stages: tuple[NestedStage, ...]) -> list[Placement]:
    """The stages of a plan in order, from those of the highest level."""
    return _placed(stages, [1, *unit_sizes(cost.levels)], len(cost.levels) - 1)


def _placed(stages: tuple[NestedStage, ...], sizes: list[int], level: int) -> list[Placement]:
    """Stages of the plan in order, on devices counted from the unit's first: units are taken one after the other."""
    found, unit = list[Placement](), 0
    for stage in stages:
        starts = [(unit + i) * sizes[level] for i in range(stage.degree)]
        within = _placed(stage.inner, sizes, level - 1) if level else [(stage.start, stage.end, [0])]
        found += [(start, end, [s + d for s in starts for d in devices]) for start, end, devices in within]
        unit += stage.degree
    return found
