"""Every error of the app as a problem document, also those of the framework."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from api.http.orders import Outcome
from api.http.problems import (
    MEDIA_TYPE,
    RETRY_AFTER_S,
    ProblemDocument,
    problem_bytes,
    problem_document,
    problem_of,
)
from planner.errors import PlannerError

log = logging.getLogger(__name__)

MAX_FAULTS_SHOWN = 5
SLUGS = {404: "not-found", 413: "too-large"}


def add_fault_handlers(app: FastAPI) -> None:
    """Register the handlers below."""
    app.add_exception_handler(PlannerError, _planner_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _unexpected)


def problem_response(problem: ProblemDocument, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that carries a problem document."""
    return _answer(problem_bytes(problem), MEDIA_TYPE, problem.status, headers)


def outcome_response(outcome: Outcome, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that carries a worker's outcome, with `status` when it is a success."""
    return _answer(outcome.body, outcome.media_type, status if outcome.ok else outcome.status, headers)


def _answer(body: bytes, media_type: str, status: int, headers: Mapping[str, str] | None) -> Response:
    more = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    if status in (408, 413):  # the rest of the body is not wanted on this connection
        more["Connection"] = "close"
    return Response(body, status_code=status, media_type=media_type, headers={**more, **(headers or {})})


async def _planner_error(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, PlannerError)
    if fault.http_status == 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=fault)
    return problem_response(problem_of(fault))


async def _http_exception(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException)
    if fault.status_code == 405:
        allowed = _allowed_methods(request)
        detail = f"this address takes {allowed}"
        return problem_response(problem_document(405, "method-not-allowed", detail), {"Allow": allowed})
    detail = "nothing is found under this address: see GET /openapi.json for those that exist"
    if fault.status_code != 404:
        detail = "the request could not be served"
    slug = SLUGS.get(fault.status_code, "invalid-input" if fault.status_code < 500 else "internal")
    return problem_response(problem_document(fault.status_code, slug, detail), fault.headers)


def _allowed_methods(request: Request) -> str:
    """The methods of every route at this address. (The framework names those of the first one only.)"""
    methods: set[str] = set()
    for path, operations in request.app.openapi()["paths"].items():
        if compile_path(path)[0].match(request.scope["path"]):
            methods |= {name.upper() for name in operations}
    return ", ".join(sorted(methods)) or "GET"  # the pages are not in the document


async def _validation_error(request: Request, fault: Exception) -> Response:
    """Faults of path and query parameters, named without their values."""
    assert isinstance(fault, RequestValidationError)
    places = ["/" + "/".join(str(part) for part in error["loc"]) for error in fault.errors()]
    texts = [f"{at}: {error['msg']}" for at, error in zip(places, fault.errors(), strict=True)]
    return problem_response(problem_document(422, "invalid-input", "; ".join(texts[:MAX_FAULTS_SHOWN]), places[0]))


async def _unexpected(request: Request, fault: Exception) -> Response:
    """Our own fault: the words stay in the log (the server writes the traceback)."""
    return problem_response(problem_document(500, "internal", "this is our fault and stands in the service's log"))
