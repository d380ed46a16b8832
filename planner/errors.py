"""The one exception tree.

    PlannerError
    ├── InputError      what the caller gave is wrong            exit 2   HTTP 422
    ├── LimitError      a limit ended the work without a result  exit 4   HTTP 503
    ├── ExportError     an engine cannot express the plan        exit 2   HTTP 422
    ├── RunError        a plan started and did not finish well   exit 1   HTTP 500
    └── InternalError   our own fault                            exit 1   HTTP 500

"Infeasible" is an answer and no error: `planner.plan` returns it with its explanation. Messages name the
object, the value, the bound and the remedy.
"""

from __future__ import annotations


class PlannerError(Exception):
    """Base of everything that PipePlan raises on purpose.

    `pointer` is a JSON pointer to the offending field where there is one, else an empty string.
    """

    exit_status: int = 1
    http_status: int = 500
    slug: str = "internal"

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class InputError(PlannerError):
    """The caller's input is wrong; the message says what to change."""

    exit_status = 2
    http_status = 422
    slug = "invalid-input"


class LimitError(PlannerError):
    """A time, size or memory limit was reached before there was any result."""

    exit_status = 4
    http_status = 503
    slug = "limit-reached"


class ExportError(PlannerError):
    """The target engine cannot express the plan; the message names the stage."""

    exit_status = 2
    http_status = 422
    slug = "not-expressible"


class RunError(PlannerError):
    """A run of a plan failed; the message names the rank and what it said."""

    slug = "run-failed"


class InternalError(PlannerError):
    """An invariant of ours broke. Please report it."""
