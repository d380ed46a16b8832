"""What the service answers beside the planner's own nouns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from api.http.problems import ProblemDocument
from planner.graph import NOUN_CONFIG
from planner.result import PlanResult
from planner.timeline import Estimate
from planner.verify import Violation


class State(StrEnum):
    """Where a job stands. Infeasible is a success: the result says so and why."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """What is known of a planning request once it is found good."""

    model: str
    num_layers: int
    num_devices: int
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """One planning request and what became of it. Times are UTC (ISO 8601)."""

    id: str
    state: State
    model: str
    num_layers: int
    num_devices: int
    time_limit_s: float
    attempts: int
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    result: PlanResult | None = None
    problem: ProblemDocument | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJobPage:
    """Jobs, the newest first, without results. `next_cursor` is the `cursor` of the next page, null on the last."""

    jobs: tuple[PlanJob, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAnswer:
    """The price of a plan, and every rule that it breaks (none: the plan is valid).

    `estimate` is null for a plan that is too broken to be simulated.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    estimate: Estimate | None
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A name that a request may use, with a line about it."""

    name: str
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every name that the service knows, by family."""

    models: tuple[CatalogueEntry, ...]
    devices: tuple[CatalogueEntry, ...]
    links: tuple[CatalogueEntry, ...]
    schedules: tuple[CatalogueEntry, ...]
    optimizers: tuple[CatalogueEntry, ...]
    bounds: tuple[CatalogueEntry, ...]
    exporters: tuple[CatalogueEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`status` is `ok`, or `unavailable` with the reason."""

    status: str
    reason: str = ""
