"""A client of the HTTP service for training jobs. Standard library only.

client = Client("http://planner.example:8000")
result = client.plan({"model": "gpt2-small", "cluster": "2xA100-40G-SXM", "workload": {"global_batch_size": 16}})
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from planner import codec
from planner.errors import ExportError, InputError, InternalError, LimitError, PlannerError, RunError
from planner.options import SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.result import PlanResult
from planner.timeline import Estimate

WAIT_S = 30.0
"""How long one request asks the service to wait; longer solves take several."""
CONNECTION_TIMEOUT_S = 60.0
ERRORS: dict[str, type[PlannerError]] = {
    error.slug: error for error in (InputError, LimitError, ExportError, RunError, InternalError)
}
BY_STATUS: dict[int, type[PlannerError]] = {503: LimitError}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that a plan breaks."""

    code: str
    message: str


class Client:
    """Calls one service. Every fault is a PlannerError that carries the words of the service's problem document."""

    def __init__(self, base_url: str, *, timeout_s: float = CONNECTION_TIMEOUT_S) -> None:
        """`base_url` is http(s)://host:port; `timeout_s` bounds each single connection, not a whole solve."""
        if urlsplit(base_url).scheme not in ("http", "https"):
            raise InputError(f"the service's address is {base_url!r}: it must begin with http:// or https://")
        self._base = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._opener = build_opener(ProxyHandler({}))

    def plan(
        self, request: Problem | Mapping[str, Any], options: SearchOptions | None = None, *, timeout_s: float = 3600.0
    ) -> PlanResult:
        """The result of a search; waits for it, at most `timeout_s` (LimitError, and the job is cancelled).

        `request` is a Problem, or the JSON values of a PlanRequest. InputError for what is wrong with it,
        LimitError when the service is full or the search reached a limit without any result.
        """
        end = time.monotonic() + timeout_s
        status, body, location = self._call(
            "POST", f"/v1/plans?wait_s={min(WAIT_S, timeout_s):.3f}", _body(request, options)
        )
        if status == 201:
            return codec.decode(PlanResult, body)
        return self._wait(location, end)

    def estimate(self, problem: Problem, plan: Plan) -> tuple[Estimate | None, tuple[Violation, ...]]:
        """The price of a plan (None when it cannot be simulated) and every rule that it breaks."""
        values = {"problem": codec.encode(problem), "plan": codec.encode(plan)}
        _, body, _ = self._call("POST", "/v1/estimates", values)
        price = body["estimate"]
        violations = tuple(Violation(**violation) for violation in body["violations"])
        return None if price is None else codec.decode(Estimate, price), violations

    def catalogue(self) -> dict[str, list[str]]:
        """The names that a request may use, by family (`models`, `devices`, `schedules`, ...)."""
        _, body, _ = self._call("GET", "/v1/catalogue")
        return {family: [entry["name"] for entry in entries] for family, entries in body.items()}

    def is_ready(self) -> bool:
        """Whether the service is there and takes plans."""
        try:
            return self._call("GET", "/readyz")[0] == 200
        except PlannerError:
            return False

    def _wait(self, location: str, end: float) -> PlanResult:
        try:
            while (left_s := end - time.monotonic()) > 0:
                _, job, _ = self._call("GET", f"{location}?wait_s={min(WAIT_S, left_s):.3f}")
                if job["state"] not in ("queued", "running"):
                    return _result(job)
        except KeyboardInterrupt:
            self._cancel(location)
            raise
        self._cancel(location)
        raise LimitError("the plan was not there in time and its search was cancelled: give a longer timeout_s")

    def _cancel(self, location: str) -> None:
        """Best effort: a finished job, or a service that is gone, needs no cancel."""
        try:
            self._call("POST", f"{location}/cancel")
        except PlannerError:
            return

    def _call(self, method: str, path: str, values: Any = None) -> tuple[int, Any, str]:
        """Status, JSON body and `Location` of one call."""
        data = None if values is None else json.dumps(values, allow_nan=False).encode()
        headers = {"Accept": "application/json", **({"Content-Type": "application/json"} if data else {})}
        request = Request(self._base + path, data=data, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return answer.status, json.loads(answer.read()), answer.headers.get("Location", "")
        except HTTPError as fault:
            with fault:
                raise _error(fault.code, fault.read()) from None
        except (URLError, OSError, http.client.HTTPException, ValueError) as fault:
            raise RunError(f"the service at {self._base} cannot be reached: {fault}") from None


def _body(request: Problem | Mapping[str, Any], options: SearchOptions | None) -> dict[str, Any]:
    values = {"problem": codec.encode(request)} if isinstance(request, Problem) else dict(request)
    return values if options is None else {**values, "options": codec.encode(options)}


def _result(job: dict[str, Any]) -> PlanResult:
    if job["state"] == "succeeded":
        return codec.decode(PlanResult, job["result"])
    if job["state"] == "failed":
        raise _problem_error(job["problem"]["status"], job["problem"])
    raise RunError(f"plan {job['id']} was cancelled")


def _error(status: int, body: bytes) -> PlannerError:
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return RunError(f"the service answered with status {status} and no problem document")
    return _problem_error(status, problem)


def _problem_error(status: int, problem: dict[str, Any]) -> PlannerError:
    """The error class that the service raised; by status for those that only the service has."""
    slug = str(problem.get("type", "")).rpartition("/")[2]
    fallback = InputError if 400 <= status < 500 else RunError
    kind = ERRORS.get(slug) or BY_STATUS.get(status) or fallback
    return kind(str(problem.get("detail", f"status {status}")), pointer=str(problem.get("pointer", "")))
