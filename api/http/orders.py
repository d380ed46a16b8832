"""What passes between the service and a worker process: an order, and the outcome that comes back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from api.http.limits import Limits
from api.http.problems import MEDIA_TYPE, ProblemDocument, problem_bytes

JSON = "application/json"


class Task(StrEnum):
    """What a worker can do."""

    CHECK = "check"
    PLAN = "plan"
    ESTIMATE = "estimate"
    EXPORT = "export"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The line that a worker reads first; parts of `part_bytes` bytes follow it.

    The first part is a request's body. An export has a second one, the PlanResult, and names its `format`.
    """

    task: Task
    part_bytes: tuple[int, ...]
    limit_s: float
    memory_bytes: int
    limits: Limits
    format: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a task ended with: an HTTP status and the body that goes with it (a problem document from 400 on)."""

    status: int
    body: bytes
    media_type: str = JSON

    @property
    def ok(self) -> bool:
        """Whether the body is the answer."""
        return self.status < 400


def refusal(problem: ProblemDocument) -> Outcome:
    """The outcome that carries a problem document."""
    return Outcome(status=problem.status, body=problem_bytes(problem), media_type=MEDIA_TYPE)
