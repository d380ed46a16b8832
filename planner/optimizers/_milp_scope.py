"""Which problems `milp` can express, and over which degrees it searches."""

from __future__ import annotations

from planner.optimizers._chain_space import device_classes
from planner.optimizers._links import uniform_links
from planner.optimizers.base import SearchContext, divisors
from planner.options import Replication
from planner.problem import Problem
from planner.workload import ReplicaMode

MAX_DEVICES = 256
"""Clusters of more devices are refused: their routes would all have to be compared."""


def unequal_links(problem: Problem) -> str:
    """Why placement matters: too few devices, or routes that differ; empty when it does not."""
    ids = [device.id for device in problem.cluster.devices if device.type in problem.profile_of]
    if not device_classes(problem, problem.workload.tensor):
        return f"there are fewer devices of one kind than the tensor degree {problem.workload.tensor}"
    if len(ids) > MAX_DEVICES:
        return f"it compares the routes of at most {MAX_DEVICES} devices (here {len(ids)})"
    joined = len(ids) < 2 or problem.network.route(ids[0], ids[1]) is not None
    return "" if joined and uniform_links(problem, ids) else "the links between the devices are not all alike"


def not_linear(problem: Problem) -> str:
    """What the model cannot express about tied parameters; empty when it can."""
    training = problem.training
    if training is None or not problem.graph.tied:
        return ""
    trainable = {layer.id for layer in problem.graph.layers if layer.trainable}
    if any(sum(name in trainable for name in tied.layers) > 2 for tied in problem.graph.tied):
        return "more than two trainable layers share parameters"
    if training.zero >= 3 and not all(problem.index.runs_backward):
        return "tied parameters under ZeRO stage 3 with frozen layers"
    return ""


def degrees(context: SearchContext, batch: tuple[int, int], num_groups: int) -> list[int]:
    """Degrees that leave whole samples (split) or a microbatch (dealt) to every replica."""
    size, count = batch
    if context.options.replication is Replication.NONE:
        return [1]
    if context.options.replica_mode is ReplicaMode.DEALT:
        return list(range(1, min(num_groups, count) + 1))
    return [degree for degree in divisors(size) if degree <= num_groups]


def searches_unequal_degrees(context: SearchContext) -> bool:
    """Whether plans with different degrees per stage are asked for and possible."""
    if context.options.replication is not Replication.ANY:
        return False
    groups = sum(map(len, device_classes(context.problem, context.problem.workload.tensor)))
    most = min(len(context.problem.index), groups)
    possible = {d for batch in context.batches() for d in degrees(context, batch, groups - 1)}
    return most > 1 and len(possible) > 1 and context.options.num_stages != 1
