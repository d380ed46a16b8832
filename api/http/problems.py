"""Problem documents (RFC 9457): the body of every answer that is not a success.

They name fields and bounds and never repeat the input. No web framework is needed here, so that the worker process
writes the same documents.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from planner.errors import InputError, PlannerError

MEDIA_TYPE = "application/problem+json"
MAX_DETAIL_LENGTH = 4000
MAX_POINTER_LENGTH = 1000
RETRY_AFTER_S = 5

TITLES = {
    "invalid-input": "The input is wrong",
    "too-large": "The input is over a size limit",
    "limit-reached": "A limit was reached before there was a result",
    "not-expressible": "The engine cannot express this plan",
    "run-failed": "The run failed",
    "internal": "The service made a mistake",
    "not-found": "There is nothing under this address",
    "method-not-allowed": "This address does not take that method",
    "unsupported-media-type": "The body must be plain application/json",
    "slow-request": "The body did not arrive in time",
    "queue-full": "Too many plans are waiting",
    "store-busy": "The store of plans is busy",
    "worker-lost": "The solver process died",
    "out-of-memory": "The solve needed more memory than it may use",
    "not-finished": "The plan is not finished",
    "already-finished": "The plan is finished",
    "cancelled": "The plan was cancelled",
}
"""Slug -> title; the slug ends the `type` of the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemDocument:
    """One problem: `type` names its kind, `pointer` the JSON pointer of the field at fault (may be empty)."""

    type: str
    title: str
    status: int
    detail: str
    pointer: str = ""


class RefusalError(PlannerError):
    """A refusal with its own HTTP status and slug."""

    def __init__(self, status: int, slug: str, message: str, *, pointer: str = "") -> None:
        super().__init__(message, pointer=pointer)
        self.http_status = status
        self.slug = slug


class TooLargeError(InputError):
    """A size limit of the service is passed: refused before its meaning is looked at."""

    http_status = 413
    slug = "too-large"


def problem_document(status: int, slug: str, detail: str, pointer: str = "") -> ProblemDocument:
    """The document of one problem, its texts cut to a sane length."""
    return ProblemDocument(
        type=f"/problems/{slug}",
        title=TITLES.get(slug) or HTTPStatus(status).phrase,
        status=status,
        detail=_cut(detail, MAX_DETAIL_LENGTH),
        pointer=_cut(pointer, MAX_POINTER_LENGTH),
    )


def problem_of(error: PlannerError) -> ProblemDocument:
    """The document of an error of ours."""
    return problem_document(error.http_status, error.slug, str(error), error.pointer)


def json_bytes(values: Any) -> bytes:
    """Compact ASCII JSON in which no markup survives: `<` `>` `&` are written as escapes."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")


def problem_bytes(problem: ProblemDocument) -> bytes:
    """The JSON of a problem document."""
    return json_bytes(asdict(problem))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."
