"""The Piper file as it is: its fields, read strictly, with every number checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from planner import codec
from planner.checks import MAX_BANDWIDTH_BYTES_PER_S, MAX_BYTES, MAX_COUNT, MAX_SECONDS, check_id, check_number
from planner.errors import InputError

MAX_DEVICES = 10_000
MAX_RUNS = 2
"""Ways to run a layer at one degree: plainly, and with recomputation."""
_FOREIGN = {"extra": "ignore", "allow_inf_nan": False, "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a node at one tensor degree (Piper's TMPC): time per microbatch, bytes of weights, bytes kept per
    microbatch in flight (A) and once (B), and bytes that synchronise the group where an edge is cut."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FOREIGN

    id: str
    time: Annotated[float, Field(alias="timePerSample")]
    weight_bytes: Annotated[float, Field(alias="parameterSize")]
    kept_bytes: Annotated[float, Field(alias="memoryUsageA")]
    fixed_bytes: Annotated[float, Field(alias="memoryUsageB")]
    sync_from: Annotated[dict[str, float], Field(alias="syncTimeFw")] = field(default_factory=dict)
    sync_to: Annotated[dict[str, float], Field(alias="syncTimeBw")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: its variants per tensor degree."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FOREIGN

    id: int
    name: str = ""
    variants: Annotated[dict[str, tuple[Variant, ...]], Field(alias="TMPCs")]

    def at(self, tensor: int) -> tuple[Variant, ...]:
        """The variants of one degree, the fastest first."""
        return tuple(sorted(self.variants[str(tensor)], key=lambda v: v.time))

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor degrees at which the node can run."""
        return tuple(sorted(int(t) for t, found in self.variants.items() if found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """One edge and its bytes per microbatch."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FOREIGN

    source: Annotated[int, Field(alias="sourceId")]
    target: Annotated[int, Field(alias="destId")]
    num_bytes: Annotated[float, Field(alias="communicationCost")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperFile:
    """The whole file."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FOREIGN

    num_devices: Annotated[int, Field(alias="maxDevices")]
    memory_bytes: Annotated[float, Field(alias="maxMemoryPerDevice")]
    bandwidth: float
    num_microbatches: Annotated[int, Field(alias="mbsInBatch")]
    nodes: tuple[Node, ...]
    edges: tuple[Arc, ...] = ()

    def layer_ids(self) -> dict[int, str]:
        """Node id -> layer id: the node's name, with its id where names are missing or repeated."""
        count = Counter(node.name for node in self.nodes)
        return {n.id: n.name if n.name and count[n.name] == 1 else f"{n.name}#{n.id}" for n in self.nodes}


def read_file(text: str) -> PiperFile:
    """The file in `text`; InputError with the file's own field names."""
    found = codec.decode(PiperFile, codec.parse(text))
    check_number(found.num_devices, "maxDevices", "/maxDevices", low=1, high=MAX_DEVICES)
    check_number(found.memory_bytes, "maxMemoryPerDevice", "/maxMemoryPerDevice")
    check_number(found.bandwidth, "bandwidth", "/bandwidth", low=1, high=MAX_BANDWIDTH_BYTES_PER_S)
    check_number(found.num_microbatches, "mbsInBatch", "/mbsInBatch", low=1, high=MAX_COUNT)
    _check_nodes(found)
    _check_arcs(found)
    return found


def _check_nodes(file: PiperFile) -> None:
    seen: set[int] = set()
    for number, node in enumerate(file.nodes):
        at, what = f"/nodes/{number}", f"node {node.id}"
        if node.id in seen:
            raise InputError(f"{what} is there twice: ids must differ", pointer=f"{at}/id")
        seen.add(node.id)
        if node.name:
            check_id(node.name, what, f"{at}/name")
        for degree, variants in node.variants.items():
            _check_degree(degree, variants, what, f"{at}/TMPCs/{degree}")


def _check_degree(degree: str, variants: tuple[Variant, ...], what: str, at: str) -> None:
    if not degree.isascii() or not degree.isdigit() or not 1 <= int(degree) <= MAX_DEVICES:
        raise InputError(f"{what}: tensor degree {degree[:40]!r} must be between 1 and {MAX_DEVICES}", pointer=at)
    if len(variants) > MAX_RUNS:
        raise InputError(f"{what} has {len(variants)} TMPCs at degree {degree} (limit {MAX_RUNS})", pointer=at)
    for number, variant in enumerate(variants):
        here = f"{at}/{number}"
        check_number(variant.time, f"{what}: timePerSample", f"{here}/timePerSample", high=MAX_SECONDS)
        check_number(variant.weight_bytes, f"{what}: parameterSize", f"{here}/parameterSize", high=MAX_BYTES)
        check_number(variant.kept_bytes, f"{what}: memoryUsageA", f"{here}/memoryUsageA")
        check_number(variant.fixed_bytes, f"{what}: memoryUsageB", f"{here}/memoryUsageB")
        for name, sync in (("syncTimeFw", variant.sync_from), ("syncTimeBw", variant.sync_to)):
            for other, num_bytes in sync.items():
                check_number(num_bytes, f"{what}: {name} {other}", f"{here}/{name}/{other}")
        if _shared(variant) != _shared(variants[0]):
            raise InputError(
                f"{what}: TMPC {variant.id!r} has other weights or synchronisation than {variants[0].id!r} at degree "
                f"{degree}: recomputation changes time and memory only",
                pointer=here,
            )


def _shared(variant: Variant) -> tuple[float, dict[str, float], dict[str, float]]:
    return variant.weight_bytes, variant.sync_from, variant.sync_to


def _check_arcs(file: PiperFile) -> None:
    ids = {node.id for node in file.nodes}
    for number, arc in enumerate(file.edges):
        at, what = f"/edges/{number}", f"edge {arc.source} -> {arc.target}"
        for name, end in (("sourceId", arc.source), ("destId", arc.target)):
            if end not in ids:
                raise InputError(f"{what}: {name} {end} is no node: fix the id", pointer=f"{at}/{name}")
        check_number(arc.num_bytes, f"{what}: communicationCost", f"{at}/communicationCost")
