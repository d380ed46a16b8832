"""The catalogue: every name that a request may use."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter

from api.http.answers import Catalogue, CatalogueEntry
from planner.registry import Registry

router = APIRouter(prefix="/v1/catalogue", tags=["catalogue"])


@router.get("", operation_id="getCatalogue", summary="Every name that a request may use")
async def get_catalogue() -> Catalogue:
    """Models, devices, links, schedules, optimizers, bounds and exporters of this version."""
    return await asyncio.to_thread(catalogue)


@functools.cache
def catalogue() -> Catalogue:
    """Read from the registries and the recorded data on the first call."""
    from planner.bounds import BOUNDS
    from planner.exporters import EXPORTERS
    from planner.optimizers.base import OPTIMIZERS
    from planner.schedules.base import SCHEDULES
    from profiles.catalogue import device_type, device_type_names, link, link_names
    from profiles.records import record_names

    return Catalogue(
        models=tuple(CatalogueEntry(name=name) for name in record_names()),
        devices=tuple(CatalogueEntry(name=name, summary=device_type(name).source) for name in device_type_names()),
        links=tuple(CatalogueEntry(name=name, summary=link(name).source) for name in link_names()),
        schedules=_members(SCHEDULES),
        optimizers=_members(OPTIMIZERS),
        bounds=_members(BOUNDS),
        exporters=_members(EXPORTERS),
    )


def _members(registry: Registry[Any]) -> tuple[CatalogueEntry, ...]:
    return tuple(CatalogueEntry(name=member.name, summary=_first_line(member)) for member in _sorted(registry))


def _sorted(registry: Iterable[Any]) -> list[Any]:
    return sorted(registry, key=lambda member: str(member.name))


def _first_line(member: Any) -> str:
    return (inspect.getdoc(type(member)) or "").partition("\n")[0]
