"""What the service is asked: a problem, or the parts to build it from, and how to search.

Sizes are checked before meaning. Nothing in a request names code, a file, a module or an address: models and
clusters come inline or by a name of the catalogue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from api.http.limits import SHORT_FORM, Limits, check_sizes, member_at
from planner import codec
from planner.cluster import Cluster
from planner.errors import InputError
from planner.graph import NOUN_CONFIG, LayerGraph
from planner.options import BY_WORD, Decision, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.workload import Inference, Training
from profiles.model import ProfiledModel

T = TypeVar("T")

CATALOGUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PARTS = ("problem", "model", "cluster", "workload")
WORKLOADS = {"training": Training, "inference": Inference}
NOUNS: dict[tuple[str, ...], type] = {
    ("problem",): Problem,
    ("problem", "graph"): LayerGraph,
    ("problem", "cluster"): Cluster,
    ("model",): ProfiledModel,
    ("model", "graph"): LayerGraph,
    ("model", "cluster"): Cluster,
    ("cluster",): Cluster,
    ("options",): SearchOptions,
    ("plan",): Plan,
}
"""Where single nouns stand in a request. Their unknown fields are found at once, however many there are."""
DOCUMENT_HEADER = {"document", "schema_version"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A search. Give `problem`, or `model`, `cluster` and `workload`.

    `model` is a profiled model or the name of a model in the catalogue; `cluster` is a cluster or a short form such
    as `8xH100-80G-SXM` (both parts may be left out where the profiled model carries them).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    problem: Problem | None = None
    model: ProfiledModel | str | None = None
    cluster: Cluster | str | None = None
    workload: Training | Inference | None = None
    options: SearchOptions = field(default_factory=SearchOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """A plan that the client brings, to be priced and checked against a problem (given as in `PlanRequest`)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    plan: Plan
    problem: Problem | None = None
    model: ProfiledModel | str | None = None
    cluster: Cluster | str | None = None
    workload: Training | Inference | None = None


def read_plan_request(body: bytes, limits: Limits) -> PlanRequest:
    """The request in a JSON body; TooLargeError for sizes, InputError with a JSON pointer for the rest."""
    values = _members(codec.parse(body, constants=True), {*PARTS, "options"})
    check_sizes(values, limits)
    options = _decode(SearchOptions, values.get("options", {}), "/options")
    options = replace(options, searched=_searched(values, options))
    request = PlanRequest(options=options, **_parts(values))
    _check_options(options, limits)
    return request


def _searched(values: dict[str, Any], options: SearchOptions) -> tuple[Decision, ...]:
    """The decisions that are searched: as asked; without a word, of a named model those that the workload leaves open.

    Named models are priced at every degree; profiles and problems hold what was measured, and say themselves.
    """
    asked, workload = values.get("options", {}), values.get("workload")
    if "searched" in asked or not isinstance(values.get("model"), str) or not isinstance(workload, dict):
        return options.searched
    possible = (Decision.TENSOR,) if workload.get("kind") == "inference" else tuple(Decision)
    return tuple(d for d in possible if d not in BY_WORD and d.value not in workload)


def read_estimate_request(body: bytes, limits: Limits) -> EstimateRequest:
    """The request in a JSON body; errors as in `read_plan_request`."""
    values = _members(codec.parse(body, constants=True), {*PARTS, "plan"})
    if "plan" not in values:
        raise InputError("there is no plan: give the plan that is to be priced", pointer="/plan")
    check_sizes(values, limits)
    return EstimateRequest(plan=_decode(Plan, values["plan"], "/plan"), **_parts(values))


def _members(values: Any, known: set[str]) -> dict[str, Any]:
    """The members of the body, when they and those of its single nouns are known ones."""
    if not isinstance(values, dict):
        raise InputError(f"the body is no JSON object: give one with {', '.join(sorted(known))}")
    _refuse_unknown(values, known, "")
    for path, noun in NOUNS.items():
        member = member_at(values, path)
        if isinstance(member, dict):
            _refuse_unknown(member, {field.name for field in fields(noun)} | DOCUMENT_HEADER, "/" + "/".join(path))
    return values


def _refuse_unknown(values: dict[str, Any], known: set[str], at: str) -> None:
    for name in values:
        if name not in known:
            raise InputError(
                f"the field {name[:64]!r} is not known here: use {', '.join(sorted(known - DOCUMENT_HEADER))}",
                pointer=f"{at}/{name[:64]}",
            )


def _parts(values: dict[str, Any]) -> dict[str, Any]:
    """The decoded parts of a problem: whole, or a model with its cluster and workload."""
    given = {name: values[name] for name in PARTS if values.get(name) is not None}
    if "problem" in given:
        if len(given) > 1:
            extra = next(name for name in given if name != "problem")
            raise InputError(f"{extra} is given beside problem: give one or the other", pointer=f"/{extra}")
        return {"problem": _decode(Problem, given["problem"], "/problem")}
    if "model" not in given:
        raise InputError("there is no problem: give problem, or model with cluster and workload", pointer="/problem")
    return {name: _part(name, value) for name, value in given.items()}


def _part(name: str, value: Any) -> Any:
    if name == "workload":
        return _decode(_workload_type(value), value, "/workload")
    if isinstance(value, str):
        return _name(name, value)
    return _decode(ProfiledModel if name == "model" else Cluster, value, f"/{name}")


def _workload_type(value: Any) -> type[Training] | type[Inference]:
    kind = value.get("kind", "training") if isinstance(value, dict) else "training"
    if not isinstance(kind, str) or kind not in WORKLOADS:
        raise InputError(f"the workload's kind must be one of {', '.join(WORKLOADS)}", pointer="/workload/kind")
    return WORKLOADS[kind]


def _name(part: str, value: str) -> str:
    if part == "model" and not CATALOGUE_NAME.fullmatch(value):
        raise InputError("model is a text that is no catalogue name: see GET /v1/catalogue", pointer="/model")
    if part == "cluster" and not SHORT_FORM.fullmatch(value):
        raise InputError("cluster is a text that is no short form such as 2x8xH100-80G-SXM", pointer="/cluster")
    return value


def _decode(noun_type: type[T], values: Any, at: str) -> T:
    try:
        return codec.decode(noun_type, values)
    except InputError as fault:
        raise moved(fault, at) from None


def moved(fault: InputError, at: str) -> InputError:
    """The same error with a pointer that starts at `at`."""
    return type(fault)(str(fault), pointer=at + fault.pointer)


def _check_options(options: SearchOptions, limits: Limits) -> None:
    if not 0 < options.time_limit_s <= limits.max_time_limit_s:
        raise InputError(
            f"time_limit_s is {options.time_limit_s:g}: it must be over 0 and at most {limits.max_time_limit_s:g}",
            pointer="/options/time_limit_s",
        )
