"""What an operator can set, read from `PIPEPLAN_*` variables when the app is made (never at import)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.errors import InputError

PREFIX = "PIPEPLAN_"
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Addresses, limits and places. Every field is the variable `PIPEPLAN_` + its name in capitals.

    `database` is one SQLite file; empty means `pipeplan/plans.sqlite` in the user's state folder. `num_solvers`
    solves run at once and `queue_size` more may wait. A solve is killed `grace_s` after its own time limit.
    `solve_memory_bytes` bounds the address space of one solve (0: no bound).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    database: str = ""
    num_solvers: int = 2
    queue_size: int = 64
    max_attempts: int = 3
    max_time_limit_s: float = 600.0
    grace_s: float = 5.0
    short_task_limit_s: float = 30.0
    solve_memory_bytes: int = 0
    max_body_bytes: int = 32 * MEBIBYTE
    body_timeout_s: float = 20.0
    max_layers: int = 20_000
    max_edges: int = 200_000
    max_devices: int = 20_000

    def __post_init__(self) -> None:
        for name in ("num_solvers", "queue_size", "max_attempts", "max_body_bytes", "max_layers", "max_devices"):
            if getattr(self, name) < 1:
                raise InputError(f"setting {name} is {getattr(self, name)}: it must be at least 1")

    @property
    def database_path(self) -> Path:
        """Where the plans are stored."""
        return Path(self.database).expanduser() if self.database else _state_folder() / "plans.sqlite"


def settings_from_environment(environment: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings from the variables that are set; `overrides` that are not None win.

    InputError for a value that is not of the field's type. Variables without a field are left alone.
    """
    variables = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for field in fields(Settings):
        text = variables.get(PREFIX + field.name.upper())
        if text is not None:
            values[field.name] = _typed(field.name, text, type(field.default))
    values.update({name: value for name, value in overrides.items() if value is not None})
    return Settings(**values)


def _typed(name: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{PREFIX}{name.upper()} is {text!r}: give a {kind.__name__}") from None


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "pipeplan"
