"""Groups of equal nodes, and the devices and links that they stand for.

    node0/gpu0 ──┬── node0/switch       `link`: the port of each device at the switch of its node
    node0/gpu1 ──┘

    node0/gpu0 ──┬── fabric             `fabric`: a network port per device,
    node0/gpu1 ──┘
    node0/switch ─── fabric             or one per node, at its switch

A node of one device has no switch. One node alone has no fabric.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from planner.cluster import Device, Link
from planner.errors import InputError
from planner.graph import NOUN_CONFIG
from profiles import catalogue

MAX_DEVICES = 100_000
FABRIC = "fabric"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """`count` equal devices of one node. `free_memory_bytes` overrides what the type leaves for tensors."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    type: str
    count: int = 1
    free_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` equal nodes. Wiring that is left out is the usual one of each device type in the catalogue.

    `link` and `fabric` are names of catalogue links; `fabric_per` says whether each device has a network port or all
    devices of a node share one. `name` is the stem of the node ids: nodes of one name are numbered through.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    devices: tuple[DeviceGroup, ...]
    count: int = 1
    name: str = "node"
    link: str | None = None
    fabric: str | None = None
    fabric_per: Literal["device", "node"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wired:
    """A device with its ports."""

    device: Device
    link: catalogue.LinkType
    fabric: catalogue.LinkType
    fabric_per: str


def expand(groups: Sequence[NodeGroup]) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """Devices and links of all nodes, node by node. InputError for zero or more than 100,000 devices."""
    _check_counts(groups)
    alone = sum(group.count for group in groups) == 1
    seen: dict[str, int] = {}
    devices: list[Device] = []
    links: list[Link] = []
    for group in groups:
        for _ in range(group.count):
            node = f"{group.name}{seen.setdefault(group.name, 0)}"
            seen[group.name] += 1
            wired = _wire(group, "" if alone else f"{node}/")
            devices += [entry.device for entry in wired]
            links += _ports(wired, f"{node}/switch")
            links += [] if alone else _uplinks(wired, f"{node}/switch")
    return tuple(devices), tuple(links)


def _check_counts(groups: Iterable[NodeGroup]) -> None:
    total = 0
    for number, group in enumerate(groups):
        for value, what in ((group.count, "nodes"), *((entry.count, "devices") for entry in group.devices)):
            if value < 1:
                raise InputError(f"node group {number} has {value} {what}: give at least 1", pointer=f"/nodes/{number}")
        total += group.count * sum(entry.count for entry in group.devices)
    if not total:
        raise InputError("the cluster has no devices: give at least one", pointer="/nodes")
    if total > MAX_DEVICES:
        raise InputError(f"the cluster has {total} devices (limit {MAX_DEVICES}): make it smaller", pointer="/nodes")


def _wire(group: NodeGroup, path: str) -> list[_Wired]:
    """The devices of one node. Ids count through per prefix: gpu0, gpu1, cpu0."""
    numbers: dict[str, int] = {}
    wired = []
    for entry in group.devices:
        usual = _wiring(group, entry.type)
        link, fabric = catalogue.link(usual.node_link), catalogue.link(usual.fabric_link)
        for _ in range(entry.count):
            number = numbers.get(usual.prefix, 0)
            numbers[usual.prefix] = number + 1
            device = Device(
                id=f"{path}{usual.prefix}{number}", type=entry.type, free_memory_bytes=entry.free_memory_bytes
            )
            wired.append(_Wired(device=device, link=link, fabric=fabric, fabric_per=usual.fabric_per))
    return wired


def _wiring(group: NodeGroup, type_name: str) -> catalogue.Interconnect:
    """The group's own wiring, completed by what is usual for the device type."""
    if type_name in catalogue.device_type_names():
        usual = catalogue.interconnect(type_name)
    elif group.link:
        usual = catalogue.Interconnect(node_link=group.link, fabric_link="ethernet-100", fabric_per="node")
    else:
        raise InputError(
            f"node group {group.name!r} has devices of type {type_name!r}, which the catalogue does not have: "
            f"give its `link`, one of {', '.join(catalogue.link_names())}"
        )
    return catalogue.Interconnect(
        node_link=group.link or usual.node_link,
        fabric_link=group.fabric or usual.fabric_link,
        fabric_per=group.fabric_per or usual.fabric_per,
        prefix=usual.prefix,
    )


def _ports(wired: list[_Wired], switch: str) -> list[Link]:
    """Each device's port at the node's switch."""
    if len(wired) == 1:
        return []
    return [entry.link.port(entry.device.id, switch) for entry in wired]


def _uplinks(wired: list[_Wired], switch: str) -> list[Link]:
    """The node's network ports: those of its devices, and one at the switch for devices that have none."""
    own = [entry for entry in wired if entry.fabric_per == "device" or len(wired) == 1]
    links = [entry.fabric.port(entry.device.id, FABRIC) for entry in own]
    if len(own) < len(wired):
        shared = next(entry for entry in wired if entry.fabric_per == "node")
        links.append(shared.fabric.port(switch, FABRIC))
    return links
