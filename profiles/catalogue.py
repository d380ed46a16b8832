"""Named device types and links: recorded figures, each with its source (`profiles/data/*.toml`).

The files are read on first use. `docs/formats.md` lists the names; `pipeplan catalogue` prints them.
"""

from __future__ import annotations

import copy
import difflib
import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from planner.cluster import DeviceType, Link
from planner.errors import InputError
from profiles.quantities import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkType:
    """A kind of link: nominal bytes per second per direction, one-way latency across one switch."""

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    source: str

    def between(self, a: str, b: str) -> Link:
        """A direct link of this kind."""
        return Link(a=a, b=b, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, latency_s=self.latency_s)

    def port(self, end: str, switch: str) -> Link:
        """The port of `end` at a switch. It carries half the latency: a route crosses two ports."""
        return Link(a=end, b=switch, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, latency_s=self.latency_s / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """How a device type is usually wired: its port in the node, its network port, and how devices are called.

    `fabric_per` is "device" (each has a network port of its own) or "node" (all of a node share one).
    """

    node_link: str
    fabric_link: str
    fabric_per: str
    prefix: str = "gpu"


_WIRING = ("node_link", "fabric_link", "fabric_per", "prefix")


def device_type(name: str) -> DeviceType:
    """The device type called `name`; InputError with near matches for an unknown name."""
    values = _entry("device type", name, _devices())
    return DeviceType(name=name, **{key: value for key, value in values.items() if key not in _WIRING})


def interconnect(name: str) -> Interconnect:
    """The usual wiring of the device type called `name`."""
    values = _entry("device type", name, _devices())
    return Interconnect(**{key: values[key] for key in _WIRING if key in values})


def link(name: str) -> LinkType:
    """The kind of link called `name`; InputError with near matches for an unknown name."""
    return LinkType(name=name, **_entry("link", name, _links()))


def device_type_names() -> tuple[str, ...]:
    """Names of all device types, in the order of the file."""
    return tuple(_devices())


def link_names() -> tuple[str, ...]:
    """Names of all links, in the order of the file."""
    return tuple(_links())


def near_matches(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known names that contain `name` or look like it, case ignored; at most four."""
    folded = {candidate.casefold(): candidate for candidate in known}
    wanted = name[:64].casefold()
    found = [key for key in folded if wanted and wanted in key]
    return tuple(folded[key] for key in found or difflib.get_close_matches(wanted, folded, cutoff=0.5))[:4]


def _entry(what: str, name: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if name in known:
        return copy.deepcopy(known[name])
    near = near_matches(name, known)
    hint = f"did you mean {' or '.join(near)}?" if near else "no name is near it."
    raise InputError(f"unknown {what} {name[:64]!r}: {hint} Known: {', '.join(known)}")


@functools.cache
def _devices() -> dict[str, dict[str, Any]]:
    return _read("devices.toml")


@functools.cache
def _links() -> dict[str, dict[str, Any]]:
    return _read("links.toml")


def _read(name: str) -> dict[str, dict[str, Any]]:
    text = files("profiles").joinpath("data", name).read_text(encoding="utf-8")
    values: dict[str, dict[str, Any]] = plain(tomllib.loads(text))
    return values
