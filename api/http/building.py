"""The problem of a request, built from its parts. Names are looked up in the catalogue, never in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from api.http.requests import EstimateRequest, PlanRequest, moved
from planner.checks import check_workload
from planner.cluster import Cluster
from planner.errors import InputError
from planner.options import Decision
from planner.problem import Problem
from profiles.model import ModelRecord, ProfiledModel

T = TypeVar("T")

INSIDE_MODEL = ("/graph", "/profiles")


def build_problem(request: PlanRequest | EstimateRequest) -> Problem:
    """The problem of a request; faults point into the request."""
    if request.problem is not None:
        return request.problem
    from profiles import sources

    assert request.model is not None  # the request's own check saw to it
    model, cluster = _model_of(request.model), _cluster_of(request)
    if request.workload is not None and cluster is not None:
        check_workload(request.workload, len(cluster.devices))
    try:
        return sources.build_problem(model, cluster, request.workload, any_tensor=_searches_tensor(request))
    except InputError as fault:
        named = isinstance(request.model, str)
        if not fault.pointer:
            raise InputError(str(fault), pointer="/cluster" if named else "/model") from None
        raise moved(fault, "/model" if fault.pointer.startswith(INSIDE_MODEL) and not named else "") from None


def _searches_tensor(request: PlanRequest | EstimateRequest) -> bool:
    """Whether the tensor degree may be any: searched, or that of a plan that the client brings."""
    return isinstance(request, EstimateRequest) or Decision.TENSOR in request.options.searched


def _model_of(model: ProfiledModel | str) -> ProfiledModel | ModelRecord:
    if not isinstance(model, str):
        return model
    from profiles.records import load_record

    return _pointing("/model", lambda: load_record(model))


def _cluster_of(request: PlanRequest | EstimateRequest) -> Cluster | None:
    if not isinstance(request.cluster, str):
        return request.cluster
    from profiles.clusters import parse_short_form

    form = request.cluster
    return _pointing("/cluster", lambda: parse_short_form(form))


def _pointing(pointer: str, call: Callable[[], T]) -> T:
    """What `call` gives; its InputError with a pointer into the request."""
    try:
        return call()
    except InputError as fault:
        raise InputError(str(fault), pointer=pointer) from None
