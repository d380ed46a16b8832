"""`verify`: check a plan against its problem. Prices with `planner.costs`, shares no code with any optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.checks import has_experts
from planner.codec import fingerprint
from planner.costs.compute import CANNOT_RUN_S
from planner.costs.model import CostModel, PricedPlan, shape_of
from planner.errors import InputError
from planner.graph import NOUN_CONFIG
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.schedules import SCHEDULES, Placement
from planner.workload import ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that is wrong with a plan: a short code, and a sentence with object, value, bound and remedy."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    code: str
    message: str


def verify(plan: Plan, problem: Problem, costs: CostModel | None = None) -> tuple[Violation, ...]:
    """Everything that is wrong with the plan; empty when it can run. O(plan size) apart from pricing.

    Ids and structure are checked first; memory, routes and legality of the schedule only on a well-formed plan.
    """
    return priced_and_verified(plan, problem, costs)[1]


def priced_and_verified(
    plan: Plan, problem: Problem, costs: CostModel | None = None
) -> tuple[PricedPlan | None, tuple[Violation, ...]]:
    """The same with the prices, for those who go on with them; None where the plan has no price."""
    found = list(_structure(plan, problem))
    if not found:
        found = [*_order(plan, problem), *_batches(plan, problem), *_devices(plan, problem)]
    if found:
        return None, tuple(found)
    try:
        SCHEDULES[plan.schedule].check(shape_of(problem, plan))
        priced = (costs or CostModel(problem)).price(plan)
    except InputError as fault:
        return None, (_violation("price", str(fault)),)
    return priced, tuple(_prices(priced))


def _violation(code: str, message: str) -> Violation:
    return Violation(code=code, message=message)


def _structure(plan: Plan, problem: Problem) -> Iterator[Violation]:
    """Known ids, every layer exactly once, no empty stage, matching fingerprint."""
    if plan.problem_fingerprint and plan.problem_fingerprint != fingerprint(problem):
        yield _violation("fingerprint", "the plan was made for another problem: plan again, or clear its fingerprint")
    if not plan.stages:
        yield _violation("stages", "the plan has no stages: give at least one")
    count = Counter(name for stage in plan.stages for name in stage.layers)
    known = problem.index.position
    for name in count:
        if name not in known:
            yield _violation("layers", f"layer {name!r} is not in the graph: remove it from the plan")
        elif count[name] > 1:
            yield _violation("layers", f"layer {name!r} is in {count[name]} stages: keep one")
    for name in known:
        if name not in count:
            yield _violation("layers", f"layer {name!r} is in no stage: add it to one")
    for number, stage in enumerate(plan.stages):
        yield from _degrees(stage, number, problem)
        if not stage.layers:
            yield _violation("stages", f"stage {number} has no layers: remove it")
        if not stage.replicas or not all(stage.replicas):
            yield _violation("devices", f"stage {number} has no devices: give it at least one")
        for device in (d for group in stage.replicas for d in group):
            if device not in problem.devices:
                yield _violation("devices", f"stage {number} uses device {device!r}, which the cluster does not have")
    if plan.schedule not in SCHEDULES:
        known_names = ", ".join(SCHEDULES.names())
        yield _violation("schedule", f"the schedule {plan.schedule!r} is unknown: use one of {known_names}")


def _degrees(stage: Stage, number: int, problem: Problem) -> Iterator[Violation]:
    """Degrees of at least 1, experts only where the model has some, a ZeRO stage that exists."""
    for name, degree in (("tensor", stage.tensor), ("context", stage.context), ("expert", stage.expert)):
        if degree < 1:
            yield _violation("degrees", f"stage {number} has {name} degree {degree}: it must be at least 1")
    if stage.expert > 1 and not has_experts(problem.graph):
        words = f"stage {number} has expert degree {stage.expert}, but no layer of the model has experts: use 1"
        yield _violation("degrees", words)
    if not 0 <= stage.zero <= 3:
        yield _violation("degrees", f"stage {number} has ZeRO stage {stage.zero}: it must be between 0 and 3")


def _order(plan: Plan, problem: Problem) -> Iterator[Violation]:
    """Tensors flow to the same or a later stage (which makes stages convex), colocated layers are together."""
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.layers}
    for edge in problem.graph.edges:
        if stage_of[edge.source] > stage_of[edge.target]:
            yield _violation(
                "order",
                f"layer {edge.target!r} in stage {stage_of[edge.target]} reads from {edge.source!r} in the later stage "
                f"{stage_of[edge.source]}: move one of them",
            )
    for group in problem.graph.colocated:
        stages = sorted({stage_of[name] for name in group})
        if len(stages) > 1:
            yield _violation("colocated", f"layers {', '.join(group)} must share a stage, but are in stages {stages}")


def _batches(plan: Plan, problem: Problem) -> Iterator[Violation]:
    """The global batch exactly, and whole samples for every replica."""
    product, wanted = plan.microbatch_size * plan.num_microbatches, problem.workload.global_batch_size
    if plan.microbatch_size < 1 or plan.num_microbatches < 1 or product != wanted:
        yield _violation(
            "batch",
            f"microbatch_size {plan.microbatch_size} x num_microbatches {plan.num_microbatches} = {product}, but the "
            f"global batch size is {wanted}: they must be equal",
        )
    for number, stage in enumerate(plan.stages):
        replicas = len(stage.replicas)
        if plan.replica_mode is ReplicaMode.SPLIT and plan.microbatch_size % replicas:
            yield _violation(
                "batch",
                f"stage {number} splits microbatches of {plan.microbatch_size} samples over {replicas} replicas: the "
                "degree must divide the microbatch size",
            )


def _devices(plan: Plan, problem: Problem) -> Iterator[Violation]:
    """No device twice but for stages of one rank, whole groups, devices that can run the layers."""
    virtual = SCHEDULES[plan.schedule].placement is not Placement.LINE
    seen: set[tuple[tuple[str, ...], ...]] = set()
    used: dict[str, int] = {}
    for number, stage in enumerate(plan.stages):
        wanted = stage.tensor * stage.context
        for group in stage.replicas:
            if len(group) != wanted:
                yield _violation(
                    "devices",
                    f"stage {number} has a replica of {len(group)} devices, tensor x context is {wanted}: equal them",
                )
        if virtual and stage.replicas in seen:
            continue
        seen.add(stage.replicas)
        for device in (device for group in stage.replicas for device in group):
            if device in used:
                yield _violation(
                    "devices",
                    f"device {device!r} is in stage {used[device]} and again in stage {number}: "
                    + ("give virtual stages of one rank the same replicas" if virtual else "use it once"),
                )
            used[device] = number
            if problem.devices[device].type not in problem.profile_of:
                yield _violation(
                    "devices",
                    f"stage {number} uses device {device!r} of type {problem.devices[device].type!r}, which has no "
                    "profile: profile it or use another device",
                )


def _prices(priced: PricedPlan) -> Iterator[Violation]:
    """Layers that a device cannot run, memory."""
    for number, stage in enumerate(priced.stages):
        if stage.pass_s >= CANNOT_RUN_S:
            yield _violation("devices", f"stage {number} has layers that its device type cannot run: move them")
        if stage.memory.total_bytes > stage.memory.limit_bytes:
            together = priced.shape.stages_on(priced.shape.ranks[number])
            if number != together[0]:
                continue
            need, limit = stage.memory.total_bytes, stage.memory.limit_bytes
            yield _violation(
                "memory",
                f"{_needs(together)} {need:,} bytes per device, the limit is {limit:,} bytes (short by "
                f"{need - limit:,}): use more stages, smaller microbatches, recomputation or more memory",
            )


def _needs(stages: tuple[int, ...]) -> str:
    return f"stage {stages[0]} needs" if len(stages) == 1 else f"stages {', '.join(map(str, stages))} together need"
