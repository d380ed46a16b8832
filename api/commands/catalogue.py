"""`pipeplan catalogue`: every name that the other commands know."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.options import JsonOption

if TYPE_CHECKING:
    from rich.table import Table


class Family(StrEnum):
    """What can be listed."""

    DEVICES = "devices"
    LINKS = "links"
    MODELS = "models"
    OPTIMIZERS = "optimizers"
    SCHEDULES = "schedules"
    BOUNDS = "bounds"
    EXPORTERS = "exporters"
    FORMATS = "formats"


def command(
    family: Annotated[Family | None, typer.Argument(help="One family; all of them by default.")] = None,
    json: JsonOption = False,
) -> None:
    """List devices, links, models, optimizers, schedules, bounds, exporters and source formats."""
    families = [family] if family else list(Family)
    if json:
        _print_json(families)
        return
    from api.terminal.console import output

    console = output()
    for each in families:
        console.print(_table(each))


def _print_json(families: list[Family]) -> None:
    import json

    values = {each.value: [dict(zip(_columns(each), row, strict=True)) for row in _rows(each)] for each in families}
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))


def _table(family: Family) -> Table:
    from api.terminal.grids import table

    return table(family.value.capitalize(), [(name, False) for name in _columns(family)], _rows(family))


def _columns(family: Family) -> tuple[str, ...]:
    special = {
        Family.DEVICES: ("name", "memory", "peak", "bandwidth", "source"),
        Family.LINKS: ("name", "bandwidth", "latency", "source"),
        Family.MODELS: ("name", "layers", "parameters", "dtype", "sequence_length"),
    }
    return special.get(family, ("name", "summary"))


def _rows(family: Family) -> Iterator[tuple[str, ...]]:
    readers: dict[Family, Callable[[], Iterator[tuple[str, ...]]]] = {
        Family.DEVICES: _devices,
        Family.LINKS: _links,
        Family.MODELS: _models,
    }
    yield from readers[family]() if family in readers else _members(family)


def _devices() -> Iterator[tuple[str, ...]]:
    from api.terminal.units import memory
    from profiles.catalogue import device_type, device_type_names

    for name in device_type_names():
        kind = device_type(name)
        peaks = kind.peak_flops_per_s or {}
        best = next((dtype for dtype in ("bfloat16", "float16", "float32") if dtype in peaks), None)
        peak = f"{peaks[best] / 1e12:g} TFLOP/s {best}" if best else "-"
        bandwidth = kind.memory_bandwidth_bytes_per_s
        yield name, memory(kind.memory_bytes), peak, f"{bandwidth / 1e9:g} GB/s" if bandwidth else "-", kind.source


def _links() -> Iterator[tuple[str, ...]]:
    from api.terminal.units import seconds
    from profiles.catalogue import link, link_names

    for name in link_names():
        kind = link(name)
        yield name, f"{kind.bandwidth_bytes_per_s / 1e9:g} GB/s", seconds(kind.latency_s), kind.source


def _models() -> Iterator[tuple[str, ...]]:
    from planner.profile import DTYPE_BYTES
    from profiles.records import load_record, record_names

    for name in record_names():
        record = load_record(name)
        tied = sum(group.parameter_bytes * (len(group.layers) - 1) for group in record.graph.tied)
        total = sum(layer.parameter_bytes for layer in record.graph.layers) - tied
        parameters = f"{total / DTYPE_BYTES[record.dtype] / 1e6:,.0f} M"
        length = str(record.sequence_length) if record.sequence_length else "-"
        yield name, str(len(record.graph.layers)), parameters, record.dtype, length


def _members(family: Family) -> Iterator[tuple[str, ...]]:
    for member in _registry(family):
        yield member.name, (inspect.getdoc(type(member)) or "").partition("\n")[0]


def _registry(family: Family) -> Iterable[Any]:
    from planner.bounds import BOUNDS
    from planner.exporters import EXPORTERS
    from planner.optimizers.base import OPTIMIZERS
    from planner.schedules import SCHEDULES
    from profiles.importers.base import IMPORTERS

    registries: dict[Family, Iterable[Any]] = {
        Family.OPTIMIZERS: OPTIMIZERS,
        Family.SCHEDULES: SCHEDULES,
        Family.BOUNDS: BOUNDS,
        Family.EXPORTERS: EXPORTERS,
        Family.FORMATS: IMPORTERS,
    }
    return registries[family]
