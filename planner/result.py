"""What a search returns: the plan, its estimate, and how far from the best it can be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG
from planner.plan import Plan
from planner.timeline import Estimate

SCHEMA_VERSION = 1
"""Version of every JSON document. A reader refuses newer ones and says so."""


class Status(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A proven lower bound. `quantity` is `objective_s` (in `search_model`) or `iteration_time_s` (simulated).

    `gap` is value / bound - 1, with the value of the plan it comes with. `method` names the bound that proved it;
    `scope` says over which plans it holds.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    quantity: str
    search_model: str
    bound_s: float
    gap: float
    method: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Why there is no plan: the tightest constraint, in words and in bytes, and what would help."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    constraint: str
    shortfall_bytes: int
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one optimizer did at one tensor degree: its best objective, what it proved there, and its seconds.

    `exact`: it proved that nothing better exists within its scope.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    optimizer: str
    tensor: int
    objective_s: float | None
    bound_s: float | None
    exact: bool
    runtime_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """How the plan was found. `objective_s` is the search model's value, not the simulated time.

    `optimizer` found the plan, `certificates` say what proved how good it is, `contributions` who did what.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    status: Status
    objective: str
    search_model: str
    objective_s: float | None
    bound_s: float | None
    gap: float | None
    certificates: tuple[Certificate, ...]
    optimizer: str
    solver: str
    runtime_s: float
    seed: int
    notes: tuple[str, ...] = ()
    infeasibility: Infeasibility | None = None
    contributions: tuple[Contribution, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """A candidate that lost, and the reason."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    plan: Plan
    objective_s: float
    iteration_time_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The answer to one planning request. `plan` and `estimate` are None when there is no plan."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    plan: Plan | None
    estimate: Estimate | None
    report: SearchReport
    runners_up: tuple[RunnerUp, ...] = ()
    planner_version: str = ""
