"""All ways to give devices to the stages of a pipeline, up to exchange of interchangeable ones (for `exhaustive`)."""

from __future__ import annotations

from collections.abc import Iterator

from planner.costs.communication import Group
from planner.joint import spreads_experts
from planner.optimizers.base import SearchContext
from planner.options import Replication
from planner.problem import Problem
from planner.workload import ReplicaMode

Assignment = tuple[tuple[Group, ...], ...]
"""Per stage, the device groups of its replicas."""


def assignments(context: SearchContext, num_stages: int, batch: tuple[int, int]) -> Iterator[Assignment]:
    """Every way to give the stages device groups, in order, up to exchange of interchangeable groups.

    The replicas of one stage are of one type and memory limit. Groups may stay idle.
    """
    classes = interchangeable(context.problem)
    kinds = [_kind(context.problem, groups[0]) for groups in classes]

    def replicas(
        degree: int, used: tuple[int, ...], kind: object
    ) -> Iterator[tuple[tuple[Group, ...], tuple[int, ...]]]:
        if degree == 0:
            yield (), used
            return
        for c, groups in enumerate(classes):
            if used[c] < len(groups) and kind in (None, kinds[c]):
                more = (*used[:c], used[c] + 1, *used[c + 1 :])
                for rest, end in replicas(degree - 1, more, kinds[c]):
                    yield (groups[used[c]], *rest), end

    def stages(left: int, used: tuple[int, ...]) -> Iterator[Assignment]:
        if left == 0:
            yield ()
            return
        for degree in _degrees(context, batch):
            for first, more in replicas(degree, used, None):
                yield from ((first, *rest) for rest in stages(left - 1, more))

    wanted = stages(num_stages, (0,) * len(classes))
    if context.options.replication is Replication.EQUAL:
        return (placed for placed in wanted if len({len(groups) for groups in placed}) == 1)
    return wanted


def device_groups(problem: Problem) -> list[Group]:
    """The groups that may hold one replica: `tensor * context` consecutive devices, in file order.

    They are of one type and memory limit. Devices of types without a profile are left out, and so are those too few to
    fill a group.
    """
    size = problem.workload.tensor * problem.workload.context
    waiting: dict[object, list[str]] = {}
    groups: list[Group] = []
    for device in problem.cluster.devices:
        if device.type not in problem.profile_of:
            continue
        members = waiting.setdefault(_kind(problem, (device.id,)), [])
        members.append(device.id)
        if len(members) == size:
            groups.append(tuple(members))
            members.clear()
    return groups


def interchangeable(problem: Problem) -> list[list[Group]]:
    """Device groups in classes: exchanging two of one class changes no type, no limit and no route."""
    everything = device_groups(problem)
    classes: list[list[Group]] = []
    for group in everything:
        for members in classes:
            if _alike(problem, members[0], group, everything):
                members.append(group)
                break
        else:
            classes.append([group])
    return classes


def _alike(problem: Problem, a: Group, b: Group, everything: list[Group]) -> bool:
    if _kind(problem, a) != _kind(problem, b):
        return False
    swap = dict(zip((*a, *b), (*b, *a), strict=True))
    devices = [device for group in everything for device in group]
    return all(
        _link(problem, x, y) == _link(problem, swap[x], swap.get(y, y))
        and _link(problem, y, x) == _link(problem, swap.get(y, y), swap[x])
        for x in (*a, *b)
        for y in devices
    )


def _link(problem: Problem, a: str, b: str) -> tuple[float, float] | None:
    route = problem.network.route(a, b)
    return None if route is None else (route.bandwidth_bytes_per_s, route.latency_s)


def _kind(problem: Problem, group: Group) -> tuple[str, int]:
    return problem.devices[group[0]].type, problem.memory_limits[group[0]]


def _degrees(context: SearchContext, batch: tuple[int, int]) -> list[int]:
    """Degrees that leave whole samples (split) or a microbatch (dealt) to every replica, and experts to spread."""
    size, count = batch
    dealt = context.options.replica_mode is ReplicaMode.DEALT
    most = 1 if context.options.replication is Replication.NONE else len(device_groups(context.problem))
    degrees = [d for d in range(1, most + 1) if (d <= count if dealt else size % d == 0)]
    return [d for d in degrees if spreads_experts(context.problem.workload, context.options.replica_mode, d)]
