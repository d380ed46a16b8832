"""The worker process: `python -m api.http.worker` reads one order and its request, answers, and ends.

Standard input: one JSON line (`api.http.orders.Order`), then the parts it announces, then nothing: it stays open for
as long as the parent lives. Standard output: one line with HTTP status and media type, then the body. Solvers may
print what they like, it goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import traceback

from api.http.limits import Limits
from api.http.orders import Order, Outcome, refusal
from api.http.problems import problem_document, problem_of
from api.http.tasks import perform
from planner.errors import PlannerError

NICENESS = 10
"""Solves yield to the event loop of the service."""
ALARM_MARGIN_S = 10.0
"""The kernel ends a worker this long after its limit, should the parent not have done so."""
CHUNK_BYTES = 2**20


def main() -> None:
    """Read, perform, answer."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    order = _order(_read_line())
    parts = tuple(_read_exactly(count) for count in order.part_bytes)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _bound(order)
    outcome = _outcome(order, parts)
    answers.write(f"{outcome.status} {outcome.media_type}\n".encode() + outcome.body)
    answers.close()


def _outcome(order: Order, parts: tuple[bytes, ...]) -> Outcome:
    try:
        return perform(order, parts)
    except PlannerError as fault:
        return refusal(problem_of(fault))
    except MemoryError:
        detail = f"the solve may use {order.memory_bytes} bytes of address space: send a smaller problem"
        return refusal(problem_document(503, "out-of-memory", detail))
    except Exception:
        traceback.print_exc()
        return refusal(
            problem_document(500, "internal", "this is our fault and stands in the service's log: report it")
        )


def _order(line: bytes) -> Order:
    values = json.loads(line)
    return Order(**{**values, "limits": Limits(**values["limits"])})


def _bound(order: Order) -> None:
    os.nice(NICENESS)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, order.limit_s + ALARM_MARGIN_S)
    if order.memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (order.memory_bytes, order.memory_bytes))


def _die_with_parent() -> None:
    """Wait for the end of standard input, which is the end of the parent; then take the whole group along."""
    while os.read(0, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += _read_exactly(1)
    return line


def _read_exactly(count: int) -> bytes:
    """`count` bytes of standard input, unbuffered, so that nothing of the lifeline is swallowed."""
    parts: list[bytes] = []
    while count:
        part = os.read(0, min(count, CHUNK_BYTES))
        if not part:
            sys.exit("standard input ended early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
