"""Why nothing fits: the least that any split exceeds the memory limits by. What helps: `planner.explanations`."""

from __future__ import annotations

from collections.abc import Iterator

from planner.errors import InputError, LimitError
from planner.optimizers._chain_kernel import Caps, Goal, Solution, Sweep
from planner.optimizers._chain_memory import fewest_groups
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers._links import unlike_devices
from planner.optimizers.base import SearchContext, divisors, mixes_devices
from planner.options import Replication
from planner.result import Infeasibility
from planner.schedules import SCHEDULES, shape_on
from planner.workload import ReplicaMode


def explain(context: SearchContext) -> Infeasibility | None:
    """The tightest memory constraint over all splits into consecutive layers; None when one fits.

    One sweep per batch and replication degree finds the split whose worst stage exceeds its limit least.
    """
    worst = least_excess(context)
    if worst is None:
        return None if context.clock.expired() else _no_route(context)
    excess, space, solution = worst
    if excess <= 0:
        return None
    stage, need, limit = _tightest(context, space, solution)
    shape = f"{len(solution.stages)} stages, microbatch size {space.microbatch_size}, {space.schedule}"
    return Infeasibility(
        constraint="memory",
        shortfall_bytes=int(excess),
        message=(
            f"no split fits: the best ({shape}) still needs {need / 2**30:.2f} GiB per device on {stage}, the limit is "
            f"{limit / 2**30:.2f} GiB (short by {excess / 2**30:.2f} GiB = {int(excess):,} bytes)"
        ),
        remedy="more devices, more memory per device, or a smaller model",
    )


def provably_exceeds(context: SearchContext) -> bool:
    """Whether no split into consecutive layers fits, whatever the replication degrees are (`_chain_memory`)."""
    if mixes_devices(context):
        return False
    classes = device_classes(context.problem, context.problem.workload.tensor)
    most = max((len(groups) for groups in classes), default=0)
    for batch in context.batches():
        space = ChainSpace(context, context.schedules[0], batch, tuple(_degrees(context, batch, most)))
        try:
            if fewest_groups(space, context.options.num_stages) is not None:
                return False
        except LimitError:
            return False
    return True


def least_excess(context: SearchContext) -> tuple[float, ChainSpace, Solution] | None:
    """(bytes over the limit, space, split) of the split that exceeds its memory limits least; None without any."""
    best: tuple[float, ChainSpace, Solution] | None = None
    for space in _spaces(context):
        most = min(space.num_layers, sum(space.capacity))
        solution = Sweep(space, Goal.EXCESS, Caps()).best(most, context.options.num_stages)
        if solution is not None and (best is None or solution.value < best[0]):
            best = (solution.value, space, solution)
        if context.clock.expired():
            break
    return best


def _spaces(context: SearchContext) -> Iterator[ChainSpace]:
    """One space per batch and equal replication degree, under the schedule that holds least."""
    classes = device_classes(context.problem, context.problem.workload.tensor)
    most = max((len(groups) for groups in classes), default=0)
    for batch in context.batches():
        for degree in _degrees(context, batch, most):
            space = ChainSpace(context, context.schedules[0], batch, (degree,))
            if space.configs:
                yield space


def _degrees(context: SearchContext, batch: tuple[int, int], most: int) -> list[int]:
    if context.options.replication is Replication.NONE:
        return [1]
    total = batch[1] if context.options.replica_mode is ReplicaMode.DEALT else batch[0]
    return [degree for degree in divisors(total) if degree <= most]


def _tightest(context: SearchContext, space: ChainSpace, solution: Solution) -> tuple[str, int, int]:
    priced = context.costs.price(space.plan(solution.stages, idle_last=False))
    over = [(s.memory.total_bytes - s.memory.limit_bytes, -n) for n, s in enumerate(priced.stages)]
    number = -max(over)[1]
    stage = priced.stages[number]
    layers = stage.stage.layers
    name = f"stage {number} ({layers[0]} .. {layers[-1]})" if len(layers) > 1 else f"stage {number} ({layers[0]})"
    return name, stage.memory.total_bytes, stage.memory.limit_bytes


def no_shape(context: SearchContext) -> Infeasibility:
    """Why a schedule with several stages per device group has no plan: what it says of the simplest shape."""
    work, schedule = context.problem.workload, context.options.schedule
    groups = len(context.problem.cluster.devices) // (work.tensor * work.context)
    said = next(filter(None, (_objection(schedule, groups, count) for _, count in context.batches())), "")
    return Infeasibility(
        constraint="schedule",
        shortfall_bytes=0,
        message=(
            f"no plan under {schedule!r} for {groups} device groups and {len(context.problem.index)} layers: it wants "
            f"at least 2 groups with several stages each, equal degrees and split microbatches{said and ': '}{said}"
        ),
        remedy="use --schedule auto, more devices or layers, or another number of microbatches",
    )


def _objection(schedule: str, groups: int, num_microbatches: int) -> str:
    """What the schedule says of two stages on each group; empty where that is legal, or there is one group."""
    if groups < 2:
        return ""
    shape = shape_on(SCHEDULES[schedule].placement, groups, 2 * groups, num_microbatches)
    try:
        SCHEDULES[schedule].check(shape)
    except InputError as fault:
        return str(fault)
    return ""


def _no_route(context: SearchContext) -> Infeasibility | None:
    """Without any split at all, either a link or a device that can run some layer is missing.

    Or the expert degree divides no number of groups that may run a microbatch together.
    """
    if not context.batches():
        return _no_groups_for_experts(context)
    ids = unlike_devices(context.problem)
    for number, a in enumerate(ids):
        for b in ids[number + 1 :]:
            if context.problem.network.route(a, b) is None:
                return Infeasibility(
                    constraint="link",
                    shortfall_bytes=0,
                    message=f"no link joins devices {a!r} and {b!r}, but their stages would have to exchange tensors",
                    remedy="add a link, or ask for fewer stages",
                )
    if context.problem.graph.colocated and context.options.num_stages not in (None, 1):
        return Infeasibility(
            constraint="colocated",
            shortfall_bytes=0,
            message=(
                f"layers that must share a stage leave too few places to cut for {context.options.num_stages} stages "
                f"(the largest set has {max(len(group) for group in context.problem.graph.colocated)} layers)"
            ),
            remedy="ask for fewer stages, or allow the layers to part",
        )
    return Infeasibility(
        constraint="devices",
        shortfall_bytes=0,
        message="no arrangement of the devices can run every layer in the asked number of stages",
        remedy="profile the layers on another device type, or change the number of stages",
    )


def _no_groups_for_experts(context: SearchContext) -> Infeasibility:
    work = context.problem.workload
    return Infeasibility(
        constraint="expert",
        shortfall_bytes=0,
        message=(
            f"expert degree {work.expert} divides no number of tensor-parallel groups that can run a microbatch "
            f"together: context degree {work.context} times the replicas that split it (they divide its samples)"
        ),
        remedy="a smaller expert degree, a larger context degree, or larger microbatches",
    )
