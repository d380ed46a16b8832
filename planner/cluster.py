"""Clusters: devices, links between them, and the route that two devices use.

Vertices of the link graph are device ids and, freely, names of switches. A hierarchy is the common short form (see
`profiles.catalogue`); any link graph is allowed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG


class DeviceKind(StrEnum):
    """What a device is to the search models: in `blocking`, a `cpu` pays no transfer time (Tarnawski et al. 2020)."""

    ACCELERATOR = "accelerator"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """A kind of device, with the figures that an analytic profile needs.

    `peak_flops_per_s` is dense (no sparsity) per dtype. `reserved_bytes` is memory that a process never gets for
    tensors: context, libraries, fragmentation. `host_bandwidth_bytes_per_s` is that of the link to the host's memory,
    per direction, where optimizer state can be offloaded to. `source` says where the figures come from.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    name: str
    memory_bytes: int
    kind: DeviceKind = DeviceKind.ACCELERATOR
    reserved_bytes: int = 0
    peak_flops_per_s: dict[str, float] | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    host_bandwidth_bytes_per_s: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device. `free_memory_bytes` overrides its type's memory (then nothing more is reserved)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    id: str
    type: str
    free_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A full-duplex link between two devices or switches: bandwidth per direction, latency one way.

    `shared` links carry one transfer at a time in each direction; on the others every pair of devices has the full
    bandwidth for itself.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    a: str
    b: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    shared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices in placement order, their types and the links between them. Checked by `Problem`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    device_types: tuple[DeviceType, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How two devices reach each other: the narrowest link's bandwidth, the summed latency, the links in order.

    `hops` holds (link number, True when it is crossed from `a` to `b`).
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    hops: tuple[tuple[int, bool], ...] = ()

    def seconds(self, num_bytes: float) -> float:
        """Seconds of one transfer of `num_bytes` (cut-through: the narrowest link sets the pace)."""
        return self.latency_s + num_bytes / self.bandwidth_bytes_per_s if num_bytes else 0.0


LOCAL_ROUTE = Route(bandwidth_bytes_per_s=float("inf"), latency_s=0.0)
"""From a device to itself."""


MAX_UPLINKS = 4
"""Links by which a switch that belongs to some devices reaches the rest of the network."""


class Network:
    """Routes over a cluster's links: the widest path, among those the one with the fewest hops.

    Routes are found on demand and remembered: O(links) for a new pair.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._links = cluster.links
        self._devices = dict.fromkeys(device.id for device in cluster.devices)
        self._neighbours: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for number, link in enumerate(cluster.links):
            self._neighbours[link.a].append((link.b, number))
            self._neighbours[link.b].append((link.a, number))
        self._widths = sorted({link.bandwidth_bytes_per_s for link in cluster.links}, reverse=True)
        self._known: dict[tuple[str, str], Route | None] = {}

    @cached_property
    def twins(self) -> dict[str, int]:
        """Per vertex a number that it shares with those that have equal links to the same neighbours, listed alike.

        Routes from two twins to a third vertex have one price, and so have the routes between any two twins: swapping
        two of them changes nothing in the graph.
        """
        numbers: dict[object, int] = {}
        return {
            vertex: numbers.setdefault(self._attachment(vertex), len(numbers))
            for vertex in (*self._devices, *self._neighbours)
        }

    @cached_property
    def kinds(self) -> dict[str, int]:
        """Per device a number that its twins share, and other sets of as many twins whose links differ in nothing but
        the names of switches of their own (the nodes of a cluster).

        So the price of a route between devices depends only on their kinds and on whether they are twins: swapping two
        such sets, with their switches, changes nothing in the graph.
        """
        members: dict[int, list[str]] = defaultdict(list)
        for device in self._devices:
            members[self.twins[device]].append(device)
        numbers: dict[object, int] = {}
        kind_of = {
            number: numbers.setdefault((len(twins), self._anonymous(twins)), len(numbers))
            for number, twins in members.items()
        }
        return {device: kind_of[self.twins[device]] for device in self._devices}

    def _attachment(self, vertex: str) -> object:
        return tuple((other, *self._price(number)) for other, number in self._neighbours.get(vertex, ())) or vertex

    def _anonymous(self, twins: list[str]) -> object:
        """What these vertices are linked to, without the names of switches that hardly anything else is linked to."""
        inside, found = set(twins), list[object]()
        for switch, number in self._neighbours.get(twins[0], ()):
            around = self._neighbours[switch]
            own = switch not in self._devices and len(around) <= len(twins) + MAX_UPLINKS
            further = tuple((v, *self._price(n)) for v, n in around if v not in inside) if own else switch
            found.append((further, *self._price(number)))
        return tuple(found) or twins[0]

    def _price(self, link: int) -> tuple[float, float]:
        return self._links[link].bandwidth_bytes_per_s, self._links[link].latency_s

    def route(self, source: str, target: str) -> Route | None:
        """The route from `source` to `target`; None when no path of links joins them."""
        if source == target:
            return LOCAL_ROUTE
        key = (source, target)
        if key not in self._known:
            self._known[key] = self._find(source, target)
        return self._known[key]

    def _find(self, source: str, target: str) -> Route | None:
        low, high, found = 0, len(self._widths) - 1, None
        while low <= high:  # the widest bandwidth at which the two are still connected
            middle = (low + high) // 2
            hops = self._shortest(source, target, self._widths[middle])
            if hops is None:
                low = middle + 1
            else:
                found, high = hops, middle - 1
        if found is None:
            return None
        links = [self._links[number] for number, _ in found]
        return Route(
            bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for link in links),
            latency_s=sum(link.latency_s for link in links),
            hops=found,
        )

    def _shortest(self, source: str, target: str, width: float) -> tuple[tuple[int, bool], ...] | None:
        """Links of a shortest path over links of at least `width`: one hop, two over a common switch, else searched."""
        ahead = self._wide_links(source, width)
        if target in ahead:
            return ((ahead[target], self._links[ahead[target]].a == source),)
        behind = self._wide_links(target, width)
        switch = next((vertex for vertex in ahead if vertex in behind), None)
        if switch is not None:
            first, second = ahead[switch], behind[switch]
            return ((first, self._links[first].a == source), (second, self._links[second].a == switch))
        return self._searched(source, target, width)

    def _wide_links(self, vertex: str, width: float) -> dict[str, int]:
        """Neighbour -> link of at least `width`."""
        return {
            other: number
            for other, number in self._neighbours[vertex]
            if self._links[number].bandwidth_bytes_per_s >= width
        }

    def _searched(self, source: str, target: str, width: float) -> tuple[tuple[int, bool], ...] | None:
        """Breadth first."""
        came: dict[str, tuple[str, int]] = {source: ("", -1)}
        queue = deque([source])
        while queue and target not in came:
            here = queue.popleft()
            for there, number in self._neighbours[here]:
                if there not in came and self._links[number].bandwidth_bytes_per_s >= width:
                    came[there] = (here, number)
                    queue.append(there)
        if target not in came:
            return None
        hops: list[tuple[int, bool]] = []
        while target != source:
            before, number = came[target]
            hops.append((number, self._links[number].a == before))
            target = before
        return tuple(reversed(hops))
