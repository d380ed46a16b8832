"""What the service is asked: a problem, or the parts to build it from, and how to search.

Sizes are checked before meaning. Nothing in a request names code, a file, a module or an address: models and
clusters come inline or by a name of the catalogue.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from api.http.problems import TooLargeError
from planner import codec
from planner.cluster import Cluster
from planner.errors import InputError
from planner.graph import NOUN_CONFIG
from planner.options import SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.workload import Inference, Training
from profiles.model import ProfiledModel

T = TypeVar("T")

CATALOGUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SHORT_FORM = re.compile(
    r"(local(:\d{1,9})?|(\d{1,9}x){1,4}[A-Za-z0-9][A-Za-z0-9._-]{0,63})(@[0-9.]{1,20}[A-Za-z]{0,4})?"
)
PARTS = ("problem", "model", "cluster", "workload")
WORKLOADS = {"training": Training, "inference": Inference}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that the service takes; `time_limit_s` bounds a search."""

    max_layers: int
    max_edges: int
    max_devices: int
    max_time_limit_s: float


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
    _check_sizes(values, limits)
    options = _decode(SearchOptions, values.get("options", {}), "/options")
    request = PlanRequest(options=options, **_parts(values))
    _check_options(options, limits)
    return request


def read_estimate_request(body: bytes, limits: Limits) -> EstimateRequest:
    """The request in a JSON body; errors as in `read_plan_request`."""
    values = _members(codec.parse(body, constants=True), {*PARTS, "plan"})
    if "plan" not in values:
        raise InputError("there is no plan: give the plan that is to be priced", pointer="/plan")
    _check_sizes(values, limits)
    return EstimateRequest(plan=_decode(Plan, values["plan"], "/plan"), **_parts(values))


def build_problem(request: PlanRequest | EstimateRequest) -> Problem:
    """The problem of a request, built from its parts where it is not given whole."""
    if request.problem is not None:
        return request.problem
    assert request.model is not None  # _parts saw to it
    if isinstance(request.model, str):
        return _priced_problem(request.model, _cluster_of(request), request.workload)
    return _joined_problem(request.model, _cluster_of(request), request.workload)


def _joined_problem(model: ProfiledModel, cluster: Cluster | None, workload: Training | Inference | None) -> Problem:
    cluster, workload = cluster or model.cluster, workload or model.workload
    if cluster is None:
        raise InputError("there is no cluster: give one, or a short form such as 8xH100-80G-SXM", pointer="/cluster")
    if workload is None:
        raise InputError("there is no workload: give a training or inference workload", pointer="/workload")
    try:
        return Problem(graph=model.graph, profiles=model.profiles, cluster=cluster, workload=workload)
    except InputError as fault:
        inside_model = fault.pointer.startswith(("/graph", "/profiles"))
        raise _moved(fault, "/model" if inside_model else "") from None


def _priced_problem(name: str, cluster: Cluster | None, workload: Training | Inference | None) -> Problem:
    """A catalogue model, priced for the cluster's devices."""
    from profiles.sources import catalogue_problem

    if cluster is None:
        raise InputError("there is no cluster: give one, or a short form such as 8xH100-80G-SXM", pointer="/cluster")
    if workload is None:
        raise InputError("there is no workload: give a training or inference workload", pointer="/workload")
    return catalogue_problem(name, cluster, workload)


def _cluster_of(request: PlanRequest | EstimateRequest) -> Cluster | None:
    if not isinstance(request.cluster, str):
        return request.cluster
    from profiles.clusters import parse_short_form

    try:
        return parse_short_form(request.cluster)
    except InputError as fault:
        raise InputError(str(fault), pointer="/cluster") from None


def _members(values: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InputError(f"the body is a JSON {type(values).__name__}: give an object with {', '.join(sorted(known))}")
    for name in values:
        if name not in known:
            raise InputError(
                f"the field {name[:64]!r} is not known here: use {', '.join(sorted(known))}", pointer=f"/{name[:64]}"
            )
    return values


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
        raise _moved(fault, at) from None


def _moved(fault: InputError, at: str) -> InputError:
    return type(fault)(str(fault), pointer=at + fault.pointer)


def _check_sizes(values: dict[str, Any], limits: Limits) -> None:
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
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    if isinstance(values, list):
        _refuse_over(len(values), limit, "/" + "/".join(path), path[-1])


def _refuse_over(count: int, limit: int, pointer: str, what: str) -> None:
    if count > limit:
        raise TooLargeError(f"{count} {what}, this service takes {limit}: send fewer", pointer=pointer)


def _check_options(options: SearchOptions, limits: Limits) -> None:
    if not 0 < options.time_limit_s <= limits.max_time_limit_s:
        raise InputError(
            f"time_limit_s is {options.time_limit_s:g}: it must be over 0 and at most {limits.max_time_limit_s:g}",
            pointer="/options/time_limit_s",
        )
