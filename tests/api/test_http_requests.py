"""Requests: sizes before meaning, pointers that lead to the fault, and nothing that names code, files or addresses."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from api.http.building import build_problem
from api.http.examples import CLUSTER, INLINE_MODEL, PROBLEM, TRAINING
from api.http.limits import Limits
from api.http.problems import TooLargeError
from api.http.requests import read_estimate_request, read_plan_request
from api.http.tasks import check
from planner import codec
from planner.errors import InputError
from planner.problem import Problem
from planner.workload import Inference

LIMITS = Limits(max_layers=10, max_edges=10, max_devices=16, max_time_limit_s=100.0)


def read(values: Any) -> Any:
    return read_plan_request(json.dumps(values).encode(), LIMITS)


def refused(values: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        build_problem(read(values))
    return caught.value


def changed(*path: str | int, value: Any) -> dict[str, Any]:
    """The example problem with one value replaced."""
    problem = copy.deepcopy(PROBLEM)
    place: Any = problem
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return {"problem": problem}


def test_a_problem_and_its_parts_are_the_same_request() -> None:
    whole = build_problem(read({"problem": PROBLEM}))
    parts = build_problem(read({"model": INLINE_MODEL, "cluster": CLUSTER, "workload": TRAINING}))
    assert whole == parts == codec.decode(Problem, PROBLEM)


def test_parts_may_carry_their_document_headers() -> None:
    whole = codec.encode(codec.decode(Problem, PROBLEM))
    assert whole["document"] == "problem"
    assert build_problem(read({"problem": whole})) == codec.decode(Problem, PROBLEM)


def test_the_model_may_carry_cluster_and_workload() -> None:
    model = {**INLINE_MODEL, "cluster": CLUSTER, "workload": TRAINING}
    assert build_problem(read({"model": model})) == codec.decode(Problem, PROBLEM)


def test_an_inference_workload_is_told_by_its_kind() -> None:
    workload = {"kind": "inference", "global_batch_size": 4}
    problem = build_problem(read({"model": INLINE_MODEL, "cluster": CLUSTER, "workload": workload}))
    assert problem.workload == Inference(global_batch_size=4)


def test_a_short_form_is_a_cluster() -> None:
    problem = build_problem(read({"model": _for("H100-80G-SXM"), "cluster": "2x2xH100-80G-SXM", "workload": TRAINING}))
    assert len(problem.cluster.devices) == 4


def test_a_name_of_the_catalogue_is_a_model() -> None:
    workload = {"kind": "training", "global_batch_size": 12, "tensor": 2}
    body = {"model": "gpt2-small", "cluster": "2x2xA100-40G-SXM", "workload": workload}
    problem = build_problem(read_plan_request(json.dumps(body).encode(), replace(LIMITS, max_layers=100)))
    assert [profile.device_type for profile in problem.profiles] == ["A100-40G-SXM"]
    sizes = [table.microbatch_size for table in problem.profiles[0].tables]
    assert sizes == [1, 2, 4, 8, 12]
    assert {table.tensor for table in problem.profiles[0].tables} == {2}


@pytest.mark.parametrize(
    ("model", "cluster", "pointer"),
    [("gpt9", "local:2", "/model"), ("gpt2-small", "2xABACUS", "/cluster"), ("gpt2-small", None, "/cluster")],
)
def test_names_that_the_catalogue_lacks(model: str, cluster: str | None, pointer: str) -> None:
    assert refused({"model": model, "cluster": cluster, "workload": TRAINING}).pointer == pointer


@pytest.mark.parametrize(("field", "value"), [("tensor", 0), ("global_batch_size", 0), ("microbatch_size", -1)])
def test_a_workload_is_checked_before_a_model_is_priced_for_it(field: str, value: int) -> None:
    workload = {"kind": "training", "global_batch_size": 8, field: value}
    fault = refused({"model": "gpt2-small", "cluster": "2xA100-40G-SXM", "workload": workload})
    assert fault.pointer == f"/workload/{field}"


def _for(device_type: str) -> dict[str, Any]:
    model = copy.deepcopy(INLINE_MODEL)
    model["profiles"][0]["device_type"] = device_type
    return model


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({}, "/problem"),
        ({"cluster": CLUSTER, "workload": TRAINING}, "/problem"),
        ({"model": INLINE_MODEL, "workload": TRAINING}, "/cluster"),
        ({"model": INLINE_MODEL, "cluster": CLUSTER}, "/workload"),
        ({"problem": PROBLEM, "model": INLINE_MODEL}, "/model"),
        ({"problem": PROBLEM, "url": "x"}, "/url"),
        ({"problem": 7}, "/problem"),
        ({"model": INLINE_MODEL, "cluster": CLUSTER, "workload": {"kind": "mining"}}, "/workload/kind"),
        (changed("graph", "layers", 1, "id", value="embedding"), "/problem/graph/layers/1/id"),
        (changed("graph", "layers", 1, "parameter_bytes", value=-1), "/problem/graph/layers/1/parameter_bytes"),
        (changed("graph", "edges", 0, "source", value="nobody"), "/problem/graph/edges/0/source"),
        (changed("cluster", "devices", value=[]), "/problem/cluster/devices"),
        (changed("workload", "global_batch_size", value=0), "/problem/workload/global_batch_size"),
        ({"problem": PROBLEM, "options": {"time_limit_s": 0}}, "/options/time_limit_s"),
        ({"problem": PROBLEM, "options": {"time_limit_s": 101}}, "/options/time_limit_s"),
        ({"problem": PROBLEM, "options": {"time_limit_s": "1 -export x"}}, "/options/time_limit_s"),
        ({"problem": PROBLEM, "options": {"threads": 4}}, "/options/threads"),
    ],
)
def test_faults_have_pointers_into_the_request(values: dict[str, Any], pointer: str) -> None:
    assert refused(values).pointer == pointer


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_stages", 0), ("num_stages", 3), ("num_finalists", 0), ("optimizer", "GUROBI"), ("schedule", "x")],
)
def test_options_are_checked_against_the_problem(name: str, value: object) -> None:
    body = json.dumps({"problem": PROBLEM, "options": {name: value}}).encode()
    with pytest.raises(InputError) as caught:
        check(body, LIMITS)
    assert caught.value.pointer == f"/options/{name}"


@pytest.mark.parametrize("constant", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_are_none_have_a_pointer(constant: str) -> None:
    body = json.dumps({"problem": PROBLEM}).replace('"forward_s": 0.004', f'"forward_s": {constant}', 1).encode()
    with pytest.raises(InputError) as caught:
        read_plan_request(body, LIMITS)
    assert caught.value.pointer == "/problem/profiles/0/tables/0/layers/block.0/forward_s"


@pytest.mark.parametrize("at", [(), ("problem",), ("problem", "graph"), ("problem", "cluster"), ("options",)])
def test_an_unknown_field_is_named_with_the_known_ones(at: tuple[str, ...]) -> None:
    values: dict[str, Any] = {"problem": copy.deepcopy(PROBLEM), "options": {}}
    place = values
    for name in at:
        place = place[name]
    place["stagez"] = 1
    fault = refused(values)
    assert fault.pointer == "/".join(("", *at, "stagez"))
    assert "'stagez' is not known here: use" in str(fault)


def test_faults_between_the_parts_point_at_the_part() -> None:
    model = copy.deepcopy(INLINE_MODEL)
    model["graph"]["edges"][0]["target"] = "nobody"
    assert refused({"model": model, "cluster": CLUSTER, "workload": TRAINING}).pointer == "/model/graph/edges/0/target"
    late = {"kind": "training", "global_batch_size": 3, "microbatch_size": 2}
    assert refused({"model": INLINE_MODEL, "cluster": CLUSTER, "workload": late}).pointer == "/workload/microbatch_size"


@pytest.mark.parametrize("model", ["os:system", "../../etc/passwd", "/etc/passwd", "http://a.example/m", "", "a" * 101])
def test_no_code_path_or_address_is_a_model(model: str) -> None:
    assert refused({"model": model, "cluster": CLUSTER, "workload": TRAINING}).pointer == "/model"


@pytest.mark.parametrize(
    "cluster", ["cluster.toml", "/etc/passwd", "../c.json", "file:8xH100", "8xH100-80G-SXM/../x", ""]
)
def test_no_file_is_a_cluster(cluster: str) -> None:
    assert refused({"model": INLINE_MODEL, "cluster": cluster, "workload": TRAINING}).pointer == "/cluster"


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"problem": {"graph": {"layers": [0] * 11}}}, "/problem/graph/layers"),
        ({"model": {"graph": {"edges": [0] * 11}}}, "/model/graph/edges"),
        ({"problem": {"cluster": {"devices": [0] * 17}}}, "/problem/cluster/devices"),
        ({"model": {"cluster": {"links": [0] * 11}}}, "/model/cluster/links"),
        ({"cluster": {"devices": [0] * 17}}, "/cluster/devices"),
        ({"cluster": "3x8xH100-80G-SXM"}, "/cluster"),
        ({"cluster": "999999999x999999999xH100-80G-SXM"}, "/cluster"),
        ({"cluster": "local:17"}, "/cluster"),
    ],
)
def test_sizes_come_before_meaning(values: dict[str, Any], pointer: str) -> None:
    fault = refused(values)
    assert isinstance(fault, TooLargeError)
    assert fault.http_status == 413
    assert fault.pointer == pointer


def test_an_estimate_needs_a_plan() -> None:
    with pytest.raises(InputError, match="no plan"):
        read_estimate_request(json.dumps({"problem": PROBLEM}).encode(), LIMITS)


def test_a_broken_plan_has_a_pointer() -> None:
    with pytest.raises(InputError) as caught:
        read_estimate_request(json.dumps({"problem": PROBLEM, "plan": {"stages": 1}}).encode(), LIMITS)
    assert caught.value.pointer.startswith("/plan/")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{} x", b"null", b'"x"', b"[1]", b'{"a":NaN}', b'{"\xff":1}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        read_plan_request(body, LIMITS)
