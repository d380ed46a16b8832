"""The best routes that any placement can have: what bounds assume about where stages lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from planner.bounds.base import BoundQuery
from planner.cluster import Route
from planner.costs.communication import Group, replica_ring_route, ring_route, tensor_groups
from planner.errors import InputError

MAX_GROUPS_LOOKED_AT = 4096


class Places:
    """Widest routes inside a tensor-parallel group, among those of a stage, and between two stages.

    Groups are `tensor * context` consecutive devices of one type in listed order, each `context` tensor-parallel ones.
    These talk k-th device to k-th device, so a ring of r of them needs r whose k-th devices hang together over links of
    its bandwidth. A stage may mix types.
    """

    def __init__(self, query: BoundQuery) -> None:
        self.problem, self.work = query.problem, query.problem.workload
        self.groups = {kind: self._listed(kind) for kind in query.groups}
        self.parts = {kind: [t for group in groups for t in self._cut(group)] for kind, groups in self.groups.items()}
        self.widths = sorted({link.bandwidth_bytes_per_s for link in self.problem.cluster.links}, reverse=True)
        self._members = cache(self._most_together)
        self.inside = cache(self._inside)
        self.around = cache(self._around)

    def _inside(self, kind: str) -> Route | None:
        """The widest ring of one tensor-parallel group, without latency; None for single devices."""
        return None if self.work.tensor == 1 else self._widest(self.parts[kind], partial(ring_route, self.problem))

    def _around(self, kind: str) -> Route | None:
        """The widest ring over the parts of one group's context, without latency; None for one part."""
        if self.work.context == 1:
            return None
        return self._widest(self.groups[kind], lambda group: replica_ring_route(self.problem, self._cut(group)))

    def _widest(self, groups: list[Group], route_of: Callable[[Group], Route | None]) -> Route | None:
        """Over the groups that have a route; the widest link where they are too many to be looked at."""
        found = []
        for group in groups[:MAX_GROUPS_LOOKED_AT]:
            try:
                route = route_of(group)
            except InputError:
                continue
            if route is not None:
                found.append(route.bandwidth_bytes_per_s)
        if len(groups) > MAX_GROUPS_LOOKED_AT:
            found.append(self.widths[0])
        return _wide(max(found, default=0.0))

    def among(self, members: int) -> Route | None:
        """The widest ring that joins so many tensor-parallel groups; None for one."""
        return None if members < 2 else _wide(self._width_for(members, parts=True))

    def between(self) -> Route | None:
        """The widest route between any two groups; None when there is one group."""
        if sum(len(groups) for groups in self.groups.values()) < 2:
            return None
        return _wide(self._width_for(2, parts=False))

    def _width_for(self, members: int, *, parts: bool) -> float:
        return next((w for w in self.widths if self._members(w, parts=parts) >= members), 0.0)

    def _most_together(self, width: float, *, parts: bool) -> int:
        """The most groups (or parts of them) whose k-th devices are joined by links of at least `width`, over all k."""
        component, most = self._components(width), 0
        pool = [group for groups in (self.parts if parts else self.groups).values() for group in groups]
        for k in range(self.work.tensor * (1 if parts else self.work.context)):
            count: dict[str, int] = {}
            for group in pool:
                root = component.get(group[k], group[k])
                count[root] = count.get(root, 0) + 1
            most = max(most, *count.values()) if count else most
        return most

    def _components(self, width: float) -> dict[str, str]:
        """Vertex -> representative of its component over links of at least `width` (union-find)."""
        parent: dict[str, str] = {}

        def find(vertex: str) -> str:
            parent.setdefault(vertex, vertex)
            while parent[vertex] != vertex:
                parent[vertex] = parent[parent[vertex]]
                vertex = parent[vertex]
            return vertex

        for link in self.problem.cluster.links:
            if link.bandwidth_bytes_per_s >= width:
                parent[find(link.a)] = find(link.b)
        return {vertex: find(vertex) for vertex in list(parent)}

    def _listed(self, kind: str) -> list[Group]:
        limits: dict[int, list[str]] = {}
        for device in self.problem.cluster.devices:
            if device.type == kind:
                limits.setdefault(self.problem.memory_limits[device.id], []).append(device.id)
        size = self.work.tensor * self.work.context
        return [tuple(ids[k : k + size]) for ids in limits.values() for k in range(0, len(ids) - size + 1, size)]

    def _cut(self, group: Group) -> list[Group]:
        return tensor_groups(group, self.work.tensor)


def _wide(bandwidth: float) -> Route | None:
    return Route(bandwidth_bytes_per_s=bandwidth, latency_s=0.0) if bandwidth else None
