"""What a search returns: the plan, its estimate, and how far from the best it can be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from planner.cluster import Cluster
from planner.graph import NOUN_CONFIG
from planner.plan import Plan
from planner.timeline import Estimate
from planner.workload import Inference, Training

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
class Remedy:
    """One change with which a plan exists; `plan` is that plan, found by planning with the change.

    `kind` is one of zero, recomputation, tensor, microbatch_size, num_microbatches, devices, memory and combined.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    kind: str
    change: str
    plan: Plan
    iteration_time_s: float
    peak_memory_bytes: int
    num_devices_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Why there is no plan: the tightest constraint, in words and in bytes, and what would help.

    `remedy` is the first of `remedies` in words, or advice where none was found.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    constraint: str
    shortfall_bytes: int
    message: str
    remedy: str
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """What a goal reached beside seconds: `value` of `quantity` (samples, devices or tokens).

    Nothing better than `bound` exists within `scope`; `method` says what proved it. `proven`: value = bound.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    quantity: str
    value: int
    bound: int
    proven: bool
    method: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one optimizer did at one choice of degrees: its best objective, what it proved there, and its seconds.

    `exact`: it proved that nothing better exists within its scope.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    optimizer: str
    tensor: int
    objective_s: float | None
    bound_s: float | None
    exact: bool
    runtime_s: float
    context: int = 1
    expert: int = 1


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
    attained: Attained | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """A candidate that lost, and the reason; or another member of a front, with its own certificates."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    plan: Plan
    objective_s: float
    iteration_time_s: float
    reason: str
    num_devices_used: int = 0
    peak_memory_bytes: int = 0
    certificates: tuple[Certificate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathShare:
    """Seconds of an iteration that are spent on one kind of work, and their share of it.

    `kind` is pivot (the worker that computes longest does so) or, while that one waits, what the critical path does:
    bubble (compute of other stages), transfer, all_reduce or optimizer.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    kind: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What a change would bring: the iteration time with it, and the relative gain in samples per second.

    `replanned`: a new plan was searched, else this plan was priced with the change.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    change: str
    iteration_time_s: float
    gain: float
    replanned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What bounds the time of a plan, and what would help most.

    `bottleneck` is the kind with the largest share of the simulated iteration; `path` has all kinds, the largest first,
    and sums up to the iteration time. `what_ifs` come with the largest gain first.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    bottleneck: str
    pivot_stage: int
    message: str
    path: tuple[PathShare, ...]
    what_ifs: tuple[WhatIf, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a goal changed in the problem, so that the plan belongs to the changed one. None: as requested."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    workload: Training | Inference | None = None
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A plan that is run today, priced like the answer beside it.

    `name` says where it comes from. `ratio` is its simulated iteration time over the answer's; None without an answer.
    `faults` say what it needs and the problem does not have (memory).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    name: str
    plan: Plan
    estimate: Estimate
    ratio: float | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The answer to one planning request. `plan` and `estimate` are None when there is no plan.

    `baseline` is set where the caller asked to compare with a plan of his own.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    plan: Plan | None
    estimate: Estimate | None
    report: SearchReport
    runners_up: tuple[RunnerUp, ...] = ()
    planner_version: str = ""
    explanation: Explanation | None = None
    changes: Changes | None = None
    baseline: Baseline | None = None
