"""Sizes that the service takes, checked on the JSON values before any meaning is looked for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from api.http.problems import TooLargeError

SHORT_FORM = re.compile(
    r"(local(:\d{1,9})?|(\d{1,9}x){1,4}[A-Za-z0-9][A-Za-z0-9._-]{0,63})(@[0-9.]{1,20}[A-Za-z]{0,4})?"
)
"""What a cluster's short form looks like; anything else (a file's name, say) is refused unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that the service takes; `time_limit_s` bounds a search."""

    max_layers: int
    max_edges: int
    max_devices: int
    max_time_limit_s: float


def check_sizes(values: dict[str, Any], limits: Limits) -> None:
    """Counts only; whatever is not a list or an object here is refused later, by name."""
    for at in ("problem", "model"):
        _check_count(values, (at, "graph", "layers"), limits.max_layers)
        _check_count(values, (at, "graph", "edges"), limits.max_edges)
        _check_count(values, (at, "graph", "tied"), limits.max_layers)
        _check_count(values, (at, "graph", "colocated"), limits.max_layers)
        _check_cluster_size(values, (at, "cluster"), limits)
    _check_cluster_size(values, ("cluster",), limits)
    _check_count(values, ("plan", "stages"), limits.max_layers)
    form = values.get("cluster")
    if isinstance(form, str) and SHORT_FORM.fullmatch(form):
        counts = [int(text) for text in re.findall(r"\d+(?=x)|(?<=:)\d+", form.split("-")[0])]
        _refuse_over(math.prod(counts), limits.max_devices, "/cluster", "devices")


def _check_cluster_size(values: dict[str, Any], path: tuple[str, ...], limits: Limits) -> None:
    _check_count(values, (*path, "devices"), limits.max_devices)
    _check_count(values, (*path, "device_types"), limits.max_devices)
    _check_count(values, (*path, "links"), limits.max_edges)


def _check_count(values: Any, path: tuple[str, ...], limit: int) -> None:
    found = member_at(values, path)
    if isinstance(found, list):
        _refuse_over(len(found), limit, "/" + "/".join(path), path[-1])


def _refuse_over(count: int, limit: int, pointer: str, what: str) -> None:
    if count > limit:
        raise TooLargeError(f"{count} {what}, this service takes {limit}: send fewer", pointer=pointer)


def member_at(values: Any, path: tuple[str, ...]) -> Any:
    """What stands at a path of member names; None where the path leads nowhere."""
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values
