"""The OpenAPI document: the committed copy is the real one, and every example in it works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from http_service import assert_problem, real_service

from api.http import openapi
from api.http.app import create_app
from api.http.examples import ESTIMATE_EXAMPLES, PLAN_EXAMPLES
from api.http.settings import Settings
from planner import codec
from planner.result import PlanResult
from planner.timeline import Estimate

COMMITTED = Path(__file__).parents[2] / "openapi.json"
OPERATIONS = {
    "createPlan",
    "listPlans",
    "getPlan",
    "cancelPlan",
    "deletePlan",
    "exportPlan",
    "createEstimate",
    "getCatalogue",
    "getLiveness",
    "getReadiness",
    "getMetrics",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with real_service(tmp_path_factory.mktemp("service")) as made:
        yield made


def document() -> dict[str, Any]:
    return openapi.describe(create_app(Settings()))


def operations() -> list[dict[str, Any]]:
    return [operation for path in document()["paths"].values() for operation in path.values()]


def test_the_committed_document_is_the_real_one() -> None:
    renew = "python -m api.http.openapi > openapi.json"
    assert COMMITTED.read_text(encoding="utf-8") == openapi.text(create_app(Settings())), f"renew it: {renew}"


def test_operation_ids_stay() -> None:
    assert {operation["operationId"] for operation in operations()} == OPERATIONS


def test_every_operation_may_answer_with_a_problem() -> None:
    for operation in operations():
        content = operation["responses"]["default"]["content"]["application/problem+json"]
        assert content["schema"]["$ref"] == "#/components/schemas/ProblemDocument"


def test_every_reference_leads_somewhere() -> None:
    whole = document()
    known = whole["components"]["schemas"]
    wanted = {part.partition('"')[0] for part in json.dumps(whole).split("#/components/schemas/")[1:]}
    assert wanted <= set(known)
    assert {"Problem", "Plan", "PlanResult", "Layer", "SearchOptions", "ProblemDocument"} <= wanted


def test_unknown_fields_are_refused_by_the_schema_too() -> None:
    schemas = document()["components"]["schemas"]
    for name in ("PlanRequest", "Problem", "Layer", "SearchOptions"):
        assert schemas[name]["additionalProperties"] is False
    assert "schema_version" in schemas["PlanResult"]["properties"]


def examples_in_the_document(path: str) -> dict[str, Any]:
    content = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    shown: dict[str, Any] = content["examples"]
    return shown


def test_the_examples_are_in_the_document() -> None:
    assert examples_in_the_document("/v1/plans") == PLAN_EXAMPLES
    assert examples_in_the_document("/v1/estimates") == ESTIMATE_EXAMPLES


@pytest.mark.parametrize("name", PLAN_EXAMPLES)
def test_every_planning_example_works(client: TestClient, name: str) -> None:
    answer = client.post("/v1/plans?wait_s=120", json=PLAN_EXAMPLES[name]["value"])
    assert answer.status_code == 201, answer.text
    result = codec.decode(PlanResult, answer.json())
    assert (result.plan is None) == (name == "infeasible")
    assert result.report.status in (("infeasible",) if name == "infeasible" else ("optimal", "feasible"))


@pytest.mark.parametrize("name", ESTIMATE_EXAMPLES)
def test_every_estimate_example_works(client: TestClient, name: str) -> None:
    answer = client.post("/v1/estimates", json=ESTIMATE_EXAMPLES[name]["value"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["violations"] == []
    assert codec.decode(Estimate, answer.json()["estimate"]).iteration_time_s > 0


def test_an_estimate_of_the_plan_found_gives_the_same_numbers(client: TestClient) -> None:
    found = client.post("/v1/plans?wait_s=120", json=PLAN_EXAMPLES["problem"]["value"]).json()
    values = {"problem": PLAN_EXAMPLES["problem"]["value"]["problem"], "plan": found["plan"]}
    priced = client.post("/v1/estimates", json=values).json()
    assert priced["violations"] == []
    assert priced["estimate"] == found["estimate"]


def test_a_broken_plan_is_told_what_is_wrong(client: TestClient) -> None:
    values = json.loads(json.dumps(ESTIMATE_EXAMPLES["two-stages"]["value"]))
    values["plan"]["stages"][0]["layers"] = ["nobody"]
    answer = client.post("/v1/estimates", json=values)
    assert answer.status_code == 200
    assert answer.json()["estimate"] is None
    assert any("nobody" in violation["message"] for violation in answer.json()["violations"])


def test_a_plan_is_exported_in_every_format_of_the_catalogue(client: TestClient) -> None:
    location = client.post("/v1/plans?wait_s=120", json=PLAN_EXAMPLES["problem"]["value"]).headers["location"]
    formats = [entry["name"] for entry in client.get("/v1/catalogue").json()["exporters"]]
    assert {"chrome_trace", "torch_pipelining"} <= set(formats)
    for name in formats:
        answer = client.get(f"{location}/exports/{name}")
        assert answer.status_code in (200, 422), answer.text
        if name in ("chrome_trace", "torch_pipelining"):
            assert answer.status_code == 200
            assert json.loads(answer.text)
    assert_problem(client.get(f"{location}/exports/paper"), 422, "invalid-input")


def test_the_catalogue_names_every_family(client: TestClient) -> None:
    families = client.get("/v1/catalogue").json()
    names = {family: [entry["name"] for entry in entries] for family, entries in families.items()}
    assert {"1f1b", "gpipe"} <= set(names["schedules"])
    assert "chain_dp" in names["optimizers"]
    assert "H100-80G-SXM" in names["devices"]
    assert "gpt2-small" in names["models"]
    assert all(names.values())
    assert all(entry["summary"] for family in ("schedules", "optimizers", "bounds") for entry in families[family])
