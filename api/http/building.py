"""The problem of a request, built from its parts. Names are looked up in the catalogue, never in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from api.http.requests import EstimateRequest, PlanRequest, moved
from planner.checks import check_workload
from planner.cluster import Cluster
from planner.errors import InputError
from planner.problem import Problem
from planner.workload import Inference, Training
from profiles.model import ProfiledModel

T = TypeVar("T")


def build_problem(request: PlanRequest | EstimateRequest) -> Problem:
    """The problem of a request, built from its parts where it is not given whole."""
    if request.problem is not None:
        return request.problem
    assert request.model is not None  # _parts saw to it
    if isinstance(request.model, str):
        return _priced_problem(request.model, _cluster_of(request), request.workload)
    return _joined_problem(request.model, _cluster_of(request), request.workload)


def _joined_problem(model: ProfiledModel, cluster: Cluster | None, workload: Training | Inference | None) -> Problem:
    cluster, workload = _given(cluster or model.cluster, workload or model.workload)
    try:
        return Problem(graph=model.graph, profiles=model.profiles, cluster=cluster, workload=workload)
    except InputError as fault:
        inside_model = fault.pointer.startswith(("/graph", "/profiles"))
        raise moved(fault, "/model" if inside_model else "") from None


def _priced_problem(name: str, cluster: Cluster | None, workload: Training | Inference | None) -> Problem:
    """A catalogue model, priced for the cluster's devices at the microbatch sizes that the workload allows."""
    from profiles.analytic import price
    from profiles.records import load_record

    cluster, workload = _given(cluster, workload)
    record = _pointing("/model", lambda: load_record(name))
    check_workload(workload, len(cluster.devices))
    kinds = [kind for kind in cluster.device_types if any(device.type == kind.name for device in cluster.devices)]
    sizes = _sizes_to_price(workload)
    profiles = _pointing(
        "/cluster",
        lambda: tuple(price(record, kind, microbatch_sizes=sizes, tensor=workload.tensor) for kind in kinds),
    )
    return Problem(graph=record.graph, profiles=profiles, cluster=cluster, workload=workload)


def _sizes_to_price(workload: Training | Inference) -> list[int]:
    """Powers of two up to the largest microbatch that there can be; costs between them are affine."""
    most = workload.microbatch_size or workload.global_batch_size
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _cluster_of(request: PlanRequest | EstimateRequest) -> Cluster | None:
    if not isinstance(request.cluster, str):
        return request.cluster
    from profiles.clusters import parse_short_form

    form = request.cluster
    return _pointing("/cluster", lambda: parse_short_form(form))


def _given(cluster: Cluster | None, workload: Training | Inference | None) -> tuple[Cluster, Training | Inference]:
    if cluster is None:
        raise InputError("there is no cluster: give one, or a short form such as 8xH100-80G-SXM", pointer="/cluster")
    if workload is None:
        raise InputError("there is no workload: give a training or inference workload", pointer="/workload")
    return cluster, workload


def _pointing(pointer: str, call: Callable[[], T]) -> T:
    """What `call` gives; its InputError with a pointer into the request."""
    try:
        return call()
    except InputError as fault:
        raise InputError(str(fault), pointer=pointer) from None
