"""The best routes that any placement can have: what bounds assume about where stages lie."""

from __future__ import annotations

from functools import cache

from planner.bounds.base import BoundQuery
from planner.cluster import Route
from planner.costs.communication import ring_route
from planner.errors import InputError

MAX_GROUPS_LOOKED_AT = 4096


class Places:
    """Widest routes inside a device group, among the replicas of a stage, and between two stages.

    Groups are `tensor` consecutive devices of one type in listed order. Replicas talk k-th device to k-th device, so a
    ring of r replicas needs r groups whose k-th devices hang together over links of its bandwidth.
    """

    def __init__(self, query: BoundQuery) -> None:
        self.problem, self.tensor = query.problem, query.problem.workload.tensor
        self.groups = {kind: self._listed(kind) for kind in query.groups}
        self.widths = sorted({link.bandwidth_bytes_per_s for link in self.problem.cluster.links}, reverse=True)
        self._members = cache(self._most_together)
        self.inside = cache(self._inside)

    def _inside(self, kind: str) -> Route | None:
        """The widest ring of one group, without latency; None for single devices."""
        if self.tensor == 1:
            return None
        found = []
        for group in self.groups[kind][:MAX_GROUPS_LOOKED_AT]:
            try:
                route = ring_route(self.problem, group)
            except InputError:
                continue
            if route is not None:
                found.append(route.bandwidth_bytes_per_s)
        if len(self.groups[kind]) > MAX_GROUPS_LOOKED_AT:
            found.append(self.widths[0])
        return _wide(max(found, default=0.0))

    def among(self, kind: str, replicas: int) -> Route | None:
        """The widest ring that joins `replicas` groups of one type; None for one replica."""
        return None if replicas < 2 else _wide(self._width_for([kind], replicas))

    def between(self) -> Route | None:
        """The widest route between any two groups; None when there is one group."""
        if sum(len(groups) for groups in self.groups.values()) < 2:
            return None
        return _wide(self._width_for(list(self.groups), 2))

    def _width_for(self, kinds: list[str], members: int) -> float:
        return next((w for w in self.widths if self._members(tuple(kinds), w) >= members), 0.0)

    def _most_together(self, kinds: tuple[str, ...], width: float) -> int:
        """The most groups whose k-th devices are joined by links of at least `width`, over all k."""
        component = self._components(width)
        most = 0
        for k in range(self.tensor):
            count: dict[str, int] = {}
            for kind in kinds:
                for group in self.groups[kind]:
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

    def _listed(self, kind: str) -> list[tuple[str, ...]]:
        limits: dict[int, list[str]] = {}
        for device in self.problem.cluster.devices:
            if device.type == kind:
                limits.setdefault(self.problem.memory_limits[device.id], []).append(device.id)
        t = self.tensor
        return [tuple(ids[k : k + t]) for ids in limits.values() for k in range(0, len(ids) - t + 1, t)]


def _wide(bandwidth: float) -> Route | None:
    return Route(bandwidth_bytes_per_s=bandwidth, latency_s=0.0) if bandwidth else None
