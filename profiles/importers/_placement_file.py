"""The device-placement file as it is: its fields, read strictly, with every number checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from planner import codec
from planner.checks import MAX_BYTES, MAX_SECONDS, check_id, check_number
from planner.errors import InputError

MAX_DEVICES = 10_000
_FOREIGN = {"extra": "ignore", "allow_inf_nan": False, "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: milliseconds on either kind of device, bytes of weights and buffers."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FOREIGN

    id: int
    name: str = ""
    cpu_ms: Annotated[float, Field(alias="cpuLatency")]
    accelerator_ms: Annotated[float, Field(alias="fpgaLatency")]
    on_accelerator: Annotated[bool | int, Field(alias="supportedOnFpga")] = True
    is_backward: Annotated[bool | int, Field(alias="isBackwardNode")] = False
    color: Annotated[int | None, Field(alias="colorClass")] = None
    size: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """One edge: `cost` is the transfer time in milliseconds of the source's output, `size` its bytes."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FOREIGN

    source: Annotated[int, Field(alias="sourceId")]
    target: Annotated[int, Field(alias="destId")]
    cost: float
    size: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFile:
    """The whole file."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FOREIGN

    accelerator_bytes: Annotated[float, Field(alias="maxSizePerFPGA")]
    num_accelerators: Annotated[int, Field(alias="maxFPGAs")]
    num_cpus: Annotated[int, Field(alias="maxCPUs")] = 0
    nodes: tuple[Node, ...]
    edges: tuple[Arc, ...] = ()

    @property
    def cost_of(self) -> dict[int, float]:
        """Node id -> transfer time of its output in milliseconds; only nodes with an edge."""
        return {arc.source: arc.cost for arc in self.edges}


def read_file(text: str) -> PlacementFile:
    """The file in `text`; InputError with the file's own field names."""
    found = codec.decode(PlacementFile, codec.parse(text))
    _check_devices(found)
    _check_nodes(found)
    _check_arcs(found)
    return found


def _check_devices(file: PlacementFile) -> None:
    check_number(file.accelerator_bytes, "maxSizePerFPGA", "/maxSizePerFPGA")
    check_number(file.num_accelerators, "maxFPGAs", "/maxFPGAs", high=MAX_DEVICES)
    check_number(file.num_cpus, "maxCPUs", "/maxCPUs", high=MAX_DEVICES)
    if not file.num_accelerators + file.num_cpus:
        raise InputError("maxFPGAs and maxCPUs are both 0: give at least one device", pointer="/maxFPGAs")


def _check_nodes(file: PlacementFile) -> None:
    seen: set[int] = set()
    for number, node in enumerate(file.nodes):
        at, what = f"/nodes/{number}", f"node {node.id}"
        if node.id in seen:
            raise InputError(f"{what} is there twice: ids must differ", pointer=f"{at}/id")
        seen.add(node.id)
        if node.name:
            check_id(node.name, what, f"{at}/name")
        check_number(node.cpu_ms, f"{what}: cpuLatency", f"{at}/cpuLatency", high=MAX_SECONDS)
        check_number(node.accelerator_ms, f"{what}: fpgaLatency", f"{at}/fpgaLatency", high=MAX_SECONDS)
        check_number(node.size, f"{what}: size", f"{at}/size", high=MAX_BYTES)


def _check_arcs(file: PlacementFile) -> None:
    ids = {node.id for node in file.nodes}
    cost_of = file.cost_of
    for number, arc in enumerate(file.edges):
        at, what = f"/edges/{number}", f"edge {arc.source} -> {arc.target}"
        for name, end in (("sourceId", arc.source), ("destId", arc.target)):
            if end not in ids:
                raise InputError(f"{what}: {name} {end} is no node: fix the id", pointer=f"{at}/{name}")
        check_number(arc.cost, f"{what}: cost", f"{at}/cost", high=MAX_SECONDS)
        check_number(arc.size, f"{what}: size", f"{at}/size")
        if arc.cost != cost_of[arc.source]:
            raise InputError(
                f"{what} costs {arc.cost}, another edge of node {arc.source} costs {cost_of[arc.source]}: a node has "
                "one output, so all its edges must cost the same",
                pointer=f"{at}/cost",
            )
