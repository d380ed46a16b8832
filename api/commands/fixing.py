"""`--fix tensor=8,stages=16`: decisions pinned in one word, the same as with the options of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from api.commands.workload import GivenWorkload
from planner.errors import InputError
from planner.options import Decision, Replication, SearchOptions
from planner.workload import Recomputation


@dataclass(frozen=True, slots=True)
class Fixed:
    """One decision: the field that holds it, how its value is read, and whether the field is one of the workload."""

    field: str
    read: Callable[[str], Any]
    of_workload: bool


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text]


FIXED = {
    "tensor": Fixed("tensor", int, True),
    "zero": Fixed("zero", int, True),
    "reshard": Fixed("reshard", _switch, True),
    "context": Fixed("context", int, True),
    "expert": Fixed("expert", int, True),
    "recompute": Fixed("recomputation", Recomputation, True),
    "microbatch": Fixed("microbatch_size", int, True),
    "num-microbatches": Fixed("num_microbatches", int, True),
    "stages": Fixed("num_stages", int, False),
    "schedule": Fixed("schedule", str, False),
    "replication": Fixed("replication", Replication, False),
}


def fixed(text: str, given: GivenWorkload, options: SearchOptions) -> tuple[GivenWorkload, SearchOptions]:
    """The words of the command line with the pinned decisions over them. InputError names what cannot be pinned."""
    pinned: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if name not in FIXED or not value:
            raise InputError(f"--fix {part!r} pins nothing: write NAME=VALUE with {', '.join(FIXED)}")
        decision = FIXED[name]
        change = {decision.field: _read(name, decision, value)}
        said = pinned.get(name, getattr(given, decision.field) if decision.of_workload else None)
        if said is not None and said != change[decision.field]:
            raise InputError(f"--fix {part!r} contradicts {name} {said}, which is given too: leave one out")
        pinned[name] = change[decision.field]
        if decision.of_workload:
            auto = (
                tuple(d for d in given.auto if d != Decision(decision.field)) if _is_decision(decision) else given.auto
            )
            given = replace(given, auto=auto, **change)
        else:
            options = replace(options, **change)
    return given, options


def _is_decision(decision: Fixed) -> bool:
    return decision.field in tuple(Decision)


def _read(name: str, decision: Fixed, value: str) -> Any:
    try:
        return decision.read(value)
    except (ValueError, KeyError):
        kind = decision.read
        known = ", ".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else "a whole number"
        known = "on or off" if kind is _switch else known
        raise InputError(f"--fix {name}={value!r} is no value of {name}: use {known}") from None
