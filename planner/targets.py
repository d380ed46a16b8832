"""Targets: what the engine that shall run the plan can express. `--target` restricts the search to it.

Every exporter for an engine has its target here, under the exporter's name, so that a plan that was searched for it is
never refused when it is exported. `planner.exporters` refuses what others bring, naming the stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import InputError
from planner.options import Decision, Level, Replication, SearchOptions
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.workload import Inference, Recomputation, ReplicaMode, Training

PART_SEPARATOR = "#"
"""Traced layers that are a later part of a module are called `module#2`; they start inside its forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one engine can express.

    `equal_replication`: one replication degree for all stages. `whole_modules`: a stage starts at the beginning of a
    module. `degrees`: which of tensor, context and expert degree it knows. `enough_microbatches`: schedules that need
    at least as many microbatches as stages. Stages are intervals of the execution order, replicas split every
    microbatch, for all of them.
    """

    name: str
    schedules: tuple[str, ...]
    zero: tuple[int, ...]
    recomputations: tuple[Recomputation, ...]
    enough_microbatches: tuple[str, ...] = ()
    equal_replication: bool = True
    whole_modules: bool = True
    degrees: tuple[Decision, ...] = (Decision.TENSOR,)

    def allows(self, level: Level) -> bool:
        """Whether the engine can recompute and shard like that."""
        return level.zero in self.zero and level.recomputation in self.recomputations

    def unknown_degree(self, found: Training | Inference | Stage) -> str:
        """The first degree above 1 that it does not know, in words; empty when it can have all."""
        for decision in (Decision.TENSOR, Decision.CONTEXT, Decision.EXPERT):
            degree = getattr(found, decision.value)
            if degree > 1 and decision not in self.degrees:
                return f"{decision.value} degree {degree}"
        return ""

    def may_start_at(self, layer: str) -> bool:
        """Whether a stage may start with the layer."""
        return not (self.whole_modules and PART_SEPARATOR in layer)

    def misfit(self, plan: Plan, problem: Problem) -> str:
        """What the engine cannot express of the plan, in words; empty when it can run it."""
        first, start = plan.stages[0], 0
        if plan.schedule not in self.schedules:
            return f"it has no schedule {plan.schedule!r}"
        if plan.schedule in self.enough_microbatches and plan.num_microbatches < len(plan.stages):
            return f"{plan.schedule} needs at least {len(plan.stages)} microbatches, there are {plan.num_microbatches}"
        for number, stage in enumerate(plan.stages):
            positions = problem.index.positions(stage.layers)
            if positions != list(range(start, start + len(positions))):
                return f"stage {number} is no interval of the execution order"
            if start and not self.may_start_at(problem.index.layers[start].id):
                return f"stage {number} starts inside a module ({problem.index.layers[start].id!r})"
            if self.equal_replication and len(stage.replicas) != len(first.replicas):
                return f"stage {number} has {len(stage.replicas)} replicas, stage 0 has {len(first.replicas)}"
            unknown = self.unknown_degree(stage)
            if unknown:
                return f"stage {number} has {unknown}"
            if stage.tensor != first.tensor:
                return f"stage {number} has tensor degree {stage.tensor}, stage 0 has {first.tensor}"
            if not self.allows(Level(stage.recomputation, stage.zero, stage.reshard)):
                return f"stage {number} has recomputation {stage.recomputation} and ZeRO stage {stage.zero}"
            start += len(positions)
        dealt = plan.replica_mode is ReplicaMode.DEALT and len(first.replicas) > 1
        return "it does not deal whole microbatches to replicas" if dealt else ""


_ALL = tuple(Recomputation)
TARGETS = {
    target.name: target
    for target in (
        Target(
            name="torch_pipelining",
            schedules=("1f1b", "gpipe"),
            zero=(0, 1, 2, 3),
            recomputations=_ALL,
            enough_microbatches=("1f1b",),
        ),
        Target(
            name="runtime",
            schedules=("1f1b", "gpipe"),
            zero=(0,),
            recomputations=(Recomputation.NONE, Recomputation.FULL),
            enough_microbatches=("1f1b",),
            whole_modules=False,
            degrees=(),
        ),
    )
}
"""By name. `runtime` is `pipeplan run`."""


def target_of(options: SearchOptions) -> Target | None:
    """The target of a search; None where the plan is for no engine in particular."""
    return TARGETS[options.target] if options.target else None


def check_target(problem: Problem, options: SearchOptions) -> None:
    """InputError where what is given contradicts the target."""
    if not options.target:
        return
    if options.target not in TARGETS:
        raise InputError(
            f"unknown target {options.target!r}: use {', '.join(sorted(TARGETS))}", pointer="/options/target"
        )
    target, training = TARGETS[options.target], problem.training
    wrong = ""
    if options.schedule not in ("auto", *target.schedules):
        wrong = f"the schedule {options.schedule!r}: use {', '.join(target.schedules)} or auto"
    elif options.replica_mode is ReplicaMode.DEALT and options.replication is not Replication.NONE:
        wrong = "dealt microbatches: use replica mode split"
    elif unknown := target.unknown_degree(problem.workload):
        wrong = f"{unknown}: use 1"
    elif training is not None and not options.searched:
        level = Level(training.recomputation, training.zero)
        if not target.allows(level):
            wrong = f"recomputation {level.recomputation} with ZeRO stage {level.zero}: use others, or search them"
    if wrong:
        raise InputError(f"the target {target.name!r} cannot express {wrong}", pointer="/options/target")
