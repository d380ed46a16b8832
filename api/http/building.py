"""The problem of a request, built from its parts. Names are looked up in the catalogue, never in files."""

from __future__ import annotations

from api.http.requests import EstimateRequest, PlanRequest, moved
from planner.cluster import Cluster
from planner.errors import InputError
from planner.problem import Problem
from planner.workload import Inference, Training
from profiles.model import ProfiledModel


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
        raise moved(fault, "/model" if inside_model else "") from None


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
