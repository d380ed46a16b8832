"""The OpenAPI description: routes from FastAPI, nouns from their pydantic adapters, worked examples.

The nouns are described by the same adapters that read them (`planner.codec.adapter`). Documents may carry
`document` and `schema_version`, so those two are added to the nouns that stand alone.
`python -m api.http.openapi > openapi.json` renews the committed copy.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from api.http.answers import EstimateAnswer, PlanJob, PlanJobPage
from api.http.examples import ESTIMATE_EXAMPLES, PLAN_EXAMPLES
from api.http.problems import MEDIA_TYPE, ProblemDocument
from api.http.requests import EstimateRequest, PlanRequest
from planner.result import PlanResult

TITLE = "PipePlan"
SUMMARY = "Plans for pipeline-parallel neural networks: stages, replication, microbatches, schedule, and a proven gap."
REF = "#/components/schemas/{model}"
REQUESTS = (PlanRequest, EstimateRequest)
ANSWERS = (PlanResult, PlanJob, PlanJobPage, EstimateAnswer, ProblemDocument)
DOCUMENTS = ("Problem", "ProfiledModel", "Cluster", "Training", "Inference", "SearchOptions", "Plan", "PlanResult")
HEADER: dict[str, Any] = {
    "document": {"type": "string", "description": "Which noun this is, in snake case; may be left out"},
    "schema_version": {"type": "integer", "description": "Version of the document's format; may be left out"},
}
LOCATION = {"Location": {"description": "Where the job is read", "schema": {"type": "string"}}}
RETRY = {"Retry-After": {"description": "Seconds until it is worth asking again", "schema": {"type": "string"}}}
TEXT: dict[str, Any] = {"description": "The plan in that format", "content": {"text/plain": {}, "application/json": {}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole OpenAPI document of the app."""
    document = get_openapi(title=TITLE, version=_version(), summary=SUMMARY, routes=app.routes, tags=TAGS)
    document["servers"] = [{"url": "/", "description": "This service"}]
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(_schemas())
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in document["paths"].values():
        for operation in path.values():
            _describe_faults(operation)
    _describe_bodies(document["paths"])
    return document


TAGS = [
    {"name": "plans", "description": "Searches for plans, as jobs"},
    {"name": "estimates", "description": "Prices of plans that exist already"},
    {"name": "catalogue", "description": "Names that requests may use"},
    {"name": "health", "description": "For operators"},
]


def _describe_bodies(paths: dict[str, Any]) -> None:
    submit = paths["/v1/plans"]["post"]
    submit["requestBody"] = _body("PlanRequest", PLAN_EXAMPLES)
    submit["responses"]["201"] = {**_answer("The plan is there", "PlanResult"), "headers": LOCATION}
    submit["responses"]["202"] = {**_answer("The search goes on", "PlanJob"), "headers": {**LOCATION, **RETRY}}
    paths["/v1/plans"]["get"]["responses"]["200"] = _answer("A page of jobs", "PlanJobPage")
    paths["/v1/plans/{plan_id}"]["get"]["responses"]["200"] = _answer("The job", "PlanJob")
    paths["/v1/plans/{plan_id}/cancel"]["post"]["responses"]["200"] = _answer("The cancelled job", "PlanJob")
    paths["/v1/plans/{plan_id}/exports/{format}"]["get"]["responses"]["200"] = TEXT
    estimate = paths["/v1/estimates"]["post"]
    estimate["requestBody"] = _body("EstimateRequest", ESTIMATE_EXAMPLES)
    estimate["responses"]["200"] = _answer("The price and the violations", "EstimateAnswer")


def _describe_faults(operation: dict[str, Any]) -> None:
    """Any answer from 400 on is a problem document."""
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {
        "description": "A problem (RFC 9457)",
        "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="ProblemDocument")}}},
    }


def _body(model: str, examples: dict[str, Any]) -> dict[str, Any]:
    return {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": REF.format(model=model)}, "examples": examples}},
    }


def _answer(description: str, model: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": REF.format(model=model)}}},
    }


def _schemas() -> dict[str, Any]:
    """JSON schemas of every noun that a request or an answer holds."""
    inputs = [(noun, "validation", TypeAdapter(noun)) for noun in REQUESTS]
    outputs = [(noun, "serialization", TypeAdapter(noun)) for noun in ANSWERS]
    _, read = TypeAdapter.json_schemas(inputs, ref_template=REF)  # type: ignore[arg-type]
    _, written = TypeAdapter.json_schemas(outputs, ref_template=REF)  # type: ignore[arg-type]
    schemas: dict[str, Any] = {**written["$defs"], **read["$defs"]}
    for name in (*DOCUMENTS, "EstimateAnswer"):
        schemas[name] = {**schemas[name], "properties": {**HEADER, **schemas[name]["properties"]}}
    return dict(sorted(schemas.items()))


def _version() -> str:
    try:
        return version("pipeplan")
    except PackageNotFoundError:
        return "unknown"


def text(app: FastAPI) -> str:
    """The committed form of the document. The version is left out, so that a release changes nothing here."""
    document = describe(app)
    document["info"]["version"] = "0"
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from api.http.app import create_app

    sys.stdout.write(text(create_app()))
