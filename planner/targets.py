"""Targets: what the engine that shall run the plan can express. `--target` restricts the search to it.

Every exporter for an engine has its target here, under the exporter's name, so that a plan that was searched for it is
never refused when it is exported, and what others bring is refused by the same words (`Target.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from planner.blocks import blocks_of
from planner.errors import ExportError, InputError
from planner.graph import GraphIndex, Layer
from planner.options import Decision, Level, Replication, SearchOptions
from planner.plan import Plan, Stage
from planner.precision import unknown_precision
from planner.problem import Problem
from planner.workload import Inference, Recomputation, ReplicaMode, Training

PART_SEPARATOR = "#"
"""Traced layers that are a later part of a module are called `module#2`; they start inside its forward."""
LOSS = "loss"
"""The `op` of the layer that stands for the loss function, which is no module."""
DEGREES = (Decision.TENSOR, Decision.CONTEXT, Decision.EXPERT)


class Cuts(StrEnum):
    """Where a stage may start: at any layer; at a module; not between two parts of a module either; the same for a
    chain of modules; at a block or after the last one; the same with a block in every stage."""

    ANYWHERE = "anywhere"
    MODULES = "modules"
    WHOLE_MODULES = "whole_modules"
    CHAIN = "chain"
    BLOCKS = "blocks"
    INNER_BLOCKS = "inner_blocks"


NEEDS_BLOCKS = (Cuts.BLOCKS, Cuts.INNER_BLOCKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one engine can express.

    `replication`: the widest that it can run; `deals`: replicas may take whole microbatches in turn, `zero_dealt`: the
    ZeRO stages of those that do. `degrees`: which of tensor, context and expert degree it knows. `enough_microbatches`:
    schedules that need at least as many microbatches as stages, `several_stages`: that need several ranks with several
    stages each. `equal_levels`: one recomputation and one ZeRO stage for all stages. `trains`, `serves`: for which
    workloads it is. `adamw`: it trains by AdamW on the devices, so that bytes per parameter must be what that holds.
    Stages are intervals of the execution order except where cuts may be anywhere, degrees the same in all stages for
    all of them.
    """

    name: str
    schedules: tuple[str, ...]
    zero: tuple[int, ...] = (0,)
    zero_dealt: tuple[int, ...] = (0,)
    recomputations: tuple[Recomputation, ...] = (Recomputation.NONE,)
    enough_microbatches: tuple[str, ...] = ()
    several_stages: tuple[str, ...] = ()
    replication: Replication = Replication.EQUAL
    deals: bool = False
    cuts: Cuts = Cuts.MODULES
    degrees: tuple[Decision, ...] = (Decision.TENSOR,)
    equal_levels: bool = False
    trains: bool = True
    serves: bool = True
    adamw: bool = False

    def allows(self, level: Level, *, dealt: bool = False) -> bool:
        """Whether the engine can recompute and shard like that; `dealt`: where replicas take microbatches in turn."""
        known = self.zero_dealt if dealt else self.zero
        return level.zero in known and level.recomputation in self.recomputations

    def unknown_degree(self, found: Training | Inference | Stage) -> str:
        """The first degree above 1 that it does not know, in words; empty when it can have all."""
        for decision in DEGREES:
            degree = getattr(found, decision.value)
            if degree > 1 and decision not in self.degrees:
                return f"{decision.value} degree {degree}"
        return ""

    def starts(self, index: GraphIndex) -> list[bool]:
        """Per position, whether a stage after the first may start there. InputError where it cannot run the graph."""
        if self.cuts is Cuts.CHAIN and not index.is_chain():
            raise InputError("the layer graph is no chain: a tensor skips over a layer", pointer="/graph/edges")
        if self.cuts not in NEEDS_BLOCKS:
            inside = _inside_modules(index) if self.cuts in (Cuts.WHOLE_MODULES, Cuts.CHAIN) else set()
            return [
                self.cuts is Cuts.ANYWHERE or (_starts_module(layer) and position not in inside)
                for position, layer in enumerate(index.layers)
            ]
        found = blocks_of(index)
        inner = range(len(found.before) + 1, len(found.before) + len(found.blocks))
        allowed = set(inner if self.cuts is Cuts.INNER_BLOCKS else found.starts)
        return [position in allowed for position in range(len(index))]

    def misfit(self, plan: Plan, problem: Problem) -> str:
        """What the engine cannot express of the plan, in words; empty when it can run it."""
        return next((words for words, _ in self._misfits(plan, problem)), "")

    def check(self, plan: Plan, problem: Problem) -> None:
        """ExportError that names the stage, where the engine cannot express the plan."""
        wrong = self._misfit_of_workload(problem.workload)
        remedy = _others_for(problem.workload) if wrong else f"plan with --target {self.name}"
        for words, pointer in self._misfits(plan, problem):
            raise ExportError(f"{words}, which {self.name} cannot express: {remedy}", pointer=pointer)

    def refusal(self, problem: Problem, options: SearchOptions) -> str:
        """What is given and the engine cannot express, in words; empty where a search may go on."""
        training = problem.training
        wrong = self._misfit_of_workload(problem.workload)
        if wrong:
            return f"{wrong}: {_others_for(problem.workload)}"
        if wrong := self._misfit_of_optimizer(problem):
            return wrong
        if options.schedule not in ("auto", *self.schedules):
            return f"the schedule {options.schedule!r}: use {', '.join(self.schedules)} or auto"
        dealt = options.replica_mode is ReplicaMode.DEALT and options.replication is not Replication.NONE
        if dealt and not self.deals:
            return "dealt microbatches: use replica mode split"
        if unknown := self.unknown_degree(problem.workload):
            return f"{unknown}: use 1"
        if training is not None and (unknown := self._unknown_level(training, options.searched, dealt=dealt)):
            return unknown
        return self._refused_cuts(problem.index, options.cuts)

    def _unknown_level(self, training: Training, searched: tuple[Decision, ...], *, dealt: bool) -> str:
        if Decision.RECOMPUTATION not in searched and training.recomputation not in self.recomputations:
            return f"recomputation {training.recomputation}: use {' or '.join(self.recomputations)}, or search it"
        if Decision.ZERO not in searched and training.zero not in self.zero:
            return f"ZeRO stage {training.zero}: use {' or '.join(map(str, self.zero))}, or search it"
        if Decision.ZERO not in searched and dealt and training.zero not in self.zero_dealt:
            choices = " or ".join(map(str, self.zero_dealt))
            return f"ZeRO stage {training.zero} with dealt microbatches: use {choices}, or replica mode split"
        return ""

    def _refused_cuts(self, index: GraphIndex, cuts: tuple[str, ...]) -> str:
        try:
            allowed = self.starts(index)
        except InputError as fault:
            return f"this model: {fault}"
        known = [name for name in cuts if index.position.get(name)]
        wrong = next((name for name in known if not allowed[index.position[name]]), "")
        return f"the cut before {wrong!r}, {_WHERE[self.cuts]}: pin another" if wrong else ""

    def _misfits(self, plan: Plan, problem: Problem) -> Iterator[tuple[str, str]]:
        """What does not fit, each with a JSON pointer into the plan."""
        wrong = self._misfit_of_workload(problem.workload)
        if wrong:
            yield f"the workload is {wrong}", ""
        elif wrong := self._misfit_of_optimizer(problem):
            yield f"the workload has {wrong}", ""
        if plan.schedule not in self.schedules:
            yield f"the schedule is {plan.schedule!r}", "/schedule"
        stages = len(plan.stages)
        if plan.schedule in self.enough_microbatches and plan.num_microbatches < stages:
            yield f"{plan.schedule} has {plan.num_microbatches} microbatches for {stages} stages", "/num_microbatches"
        ranks = max(plan.rank_of) + 1
        if plan.schedule in self.several_stages and (ranks == 1 or ranks == stages):
            yield f"stage 0 of {plan.schedule} is one of {stages} on {ranks} ranks, not several on several", "/schedule"
        yield from self._misfits_of_cuts(plan, problem.index)
        for number, stage in enumerate(plan.stages):
            dealt = plan.replica_mode is ReplicaMode.DEALT and len(stage.replicas) > 1
            for words, field in self._misfits_of_stage(stage, plan.stages[0], dealt=dealt):
                yield f"stage {number} has {words}", f"/stages/{number}/{field}"
        yield from self._misfits_of_replicas(plan)

    def _misfit_of_workload(self, workload: Training | Inference) -> str:
        if isinstance(workload, Training):
            return "" if self.trains else "training"
        return "" if self.serves else "inference"

    def _misfit_of_optimizer(self, problem: Problem) -> str:
        return unknown_precision(problem) if self.adamw and problem.training is not None else ""

    def _misfits_of_cuts(self, plan: Plan, index: GraphIndex) -> Iterator[tuple[str, str]]:
        if self.cuts is Cuts.ANYWHERE:
            return
        try:
            allowed = self.starts(index)
        except InputError as fault:
            yield f"stage 0 cannot be cut out: {fault}", "/stages/0/layers"
            return
        start = 0
        for number, stage in enumerate(plan.stages):
            at = f"/stages/{number}/layers"
            positions = index.positions(stage.layers)
            if positions != list(range(start, start + len(positions))):
                yield f"stage {number} is no interval of the execution order", at
                return
            if start and not allowed[start]:
                yield f"stage {number} starts at {index.layers[start].id!r}, {_WHERE[self.cuts]}", f"{at}/0"
            start += len(positions)

    def _misfits_of_stage(self, stage: Stage, first: Stage, *, dealt: bool) -> Iterator[tuple[str, str]]:
        """Words after "stage n has", and the field that they are about."""
        most = 1 if self.replication is Replication.NONE else len(first.replicas)
        if self.replication is not Replication.ANY and len(stage.replicas) != most:
            yield f"{len(stage.replicas)} replicas instead of {most}", "replicas"
        unknown = self.unknown_degree(stage)
        if unknown:
            yield unknown, unknown.partition(" ")[0]
        for decision in DEGREES:
            mine, theirs = getattr(stage, decision.value), getattr(first, decision.value)
            if mine != theirs:
                yield f"{decision.value} degree {mine}, stage 0 has {theirs}", decision.value
        if stage.recomputation not in self.recomputations:
            yield f"recomputation {stage.recomputation}", "recomputation"
        elif not self.allows(Level(stage.recomputation, stage.zero, stage.reshard), dealt=dealt):
            yield f"ZeRO stage {stage.zero}", "zero"
        if self.equal_levels and _level(stage) != _level(first):
            yield "another recomputation, ZeRO stage or resharding than stage 0", "recomputation"

    def _misfits_of_replicas(self, plan: Plan) -> Iterator[tuple[str, str]]:
        for number, stage in enumerate(plan.stages):
            degree, size = len(stage.replicas), plan.microbatch_size
            if degree > 1 and plan.replica_mode is ReplicaMode.DEALT and not self.deals:
                yield f"stage {number} deals whole microbatches to its replicas", "/replica_mode"
            elif plan.replica_mode is ReplicaMode.SPLIT and size % degree:
                yield f"stage {number} splits {size} samples among {degree} replicas", "/microbatch_size"


_WHERE = {
    Cuts.ANYWHERE: "anywhere",
    Cuts.MODULES: "inside a module",
    Cuts.WHOLE_MODULES: "between two parts of a module",
    Cuts.CHAIN: "between two parts of a module",
    Cuts.BLOCKS: "not at a block",
    Cuts.INNER_BLOCKS: "which leaves a stage without a block or inside one",
}


def _starts_module(layer: Layer) -> bool:
    return PART_SEPARATOR not in layer.id and layer.op != LOSS


def _inside_modules(index: GraphIndex) -> set[int]:
    """Positions after the first part of a module, up to its last one."""
    places: dict[str, list[int]] = {}
    for position, layer in enumerate(index.layers):
        places.setdefault(layer.id.partition(PART_SEPARATOR)[0], []).append(position)
    return {position for found in places.values() for position in range(found[0] + 1, found[-1] + 1)}


def _level(stage: Stage) -> Level:
    """Resharding counts under ZeRO 3 only."""
    return Level(stage.recomputation, stage.zero, stage.reshard or stage.zero != 3)


_TORCH = ("1f1b", "gpipe", "interleaved_1f1b", "looped_bfs", "zb_v", "dualpipe_v")
"""Schedules of which torch has classes."""
_TORCH_ENOUGH = ("1f1b", "dualpipe_v")
ZERO_DEALT = (0, 1)
"""The runtime's: replicas that take microbatches in turn are not in the same pass at one time, so that they can sum
gradients at the end of a step only, and gather no weights for a pass."""
_ALL = tuple(Recomputation)
_ALL_OR_NOTHING = (Recomputation.NONE, Recomputation.FULL)
TARGETS = {
    target.name: target
    for target in (
        Target(
            name="torch_pipelining",
            schedules=_TORCH,
            zero=(0, 1),
            recomputations=_ALL,
            enough_microbatches=_TORCH_ENOUGH,
        ),
        Target(
            name="torchtitan",
            schedules=_TORCH,
            zero=(0, 1),
            recomputations=_ALL_OR_NOTHING,
            enough_microbatches=_TORCH_ENOUGH,
            cuts=Cuts.BLOCKS,
            degrees=(Decision.TENSOR, Decision.CONTEXT),
            equal_levels=True,
            serves=False,
        ),
        Target(
            name="megatron",
            schedules=("1f1b", "interleaved_1f1b"),
            several_stages=("interleaved_1f1b",),
            zero=(0, 1),
            recomputations=_ALL,
            cuts=Cuts.BLOCKS,
            degrees=DEGREES,
            equal_levels=True,
            serves=False,
        ),
        Target(
            name="deepspeed",
            schedules=("1f1b",),
            zero=(0, 1),
            recomputations=_ALL_OR_NOTHING,
            cuts=Cuts.CHAIN,
            equal_levels=True,
            serves=False,
        ),
        Target(name="vllm", schedules=("1f1b", "gpipe"), cuts=Cuts.INNER_BLOCKS, trains=False),
        Target(
            name="device_map",
            schedules=("1f1b", "gpipe"),
            replication=Replication.NONE,
            cuts=Cuts.WHOLE_MODULES,
            degrees=(),
            trains=False,
        ),
        Target(
            name="runtime",
            schedules=(*_TORCH, "zb_h1", "zb_h2", "kfkb", "custom"),
            zero=(0, 1, 2, 3),
            zero_dealt=ZERO_DEALT,
            recomputations=_ALL,
            replication=Replication.ANY,
            deals=True,
            cuts=Cuts.ANYWHERE,
            degrees=(),
            serves=False,
            adamw=True,
        ),
    )
}
"""By name. `runtime` is `pipeplan run`; the others are exporters, which say where the limits come from."""


def _others_for(workload: Training | Inference) -> str:
    """The targets that can run such a workload, to be named instead."""
    names = [name for name, target in TARGETS.items() if not target._misfit_of_workload(workload)]
    return f"use one of the targets {', '.join(names)}"


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
    target = TARGETS[options.target]
    wrong = target.refusal(problem, options)
    if wrong:
        raise InputError(f"the target {target.name!r} cannot express {wrong}", pointer="/options/target")
