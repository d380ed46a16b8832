"""A worker whose searches are played: the graph's name says what happens. Everything around them is the real worker.

`hang` starts a child, tells both process ids through the pipe `FAKE_WORKER_PIPE`, and waits for ever; `die` ends
without an answer; `die-once` does so on its first run (remembered in `FAKE_WORKER_MARK`); `broken` raises and `wrong`
refuses; any other name is answered with an infeasible result.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from api.http import worker
from api.http.orders import Order, Outcome, Task
from api.http.problems import json_bytes
from api.http.requests import read_plan_request
from api.http.tasks import perform
from planner import codec
from planner.errors import InputError
from planner.result import PlanResult, SearchReport, Status


def play(order: Order, parts: tuple[bytes, ...]) -> Outcome:
    if order.task != Task.PLAN:
        return perform(order, parts)
    request = read_plan_request(parts[0], order.limits)
    assert request.problem is not None
    return _act(request.problem.graph.name)


def _act(name: str) -> Outcome:
    if name == "hang":
        _hang()
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "die-once" and not Path(os.environ["FAKE_WORKER_MARK"]).exists():
        Path(os.environ["FAKE_WORKER_MARK"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "broken":
        raise ZeroDivisionError("a fault that must not be shown")
    if name == "wrong":
        raise InputError("only the search could see this", pointer="/workload")
    if name == "hungry":
        bytearray(2**40)
    os.write(1, b"solvers print banners\n")
    return Outcome(status=200, body=json_bytes(codec.encode(_result())))


def _hang() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with Path(os.environ["FAKE_WORKER_PIPE"]).open("w") as pipe:
        pipe.write(f"{os.getpid()} {child.pid} {os.environ['TMPDIR']}")
    signal.pause()


def _result() -> PlanResult:
    report = SearchReport(
        status=Status.INFEASIBLE,
        objective="iteration_time",
        search_model="overlapped",
        objective_s=None,
        bound_s=None,
        gap=None,
        certificates=(),
        optimizer="played",
        solver="",
        runtime_s=0.0,
        seed=0,
    )
    return PlanResult(plan=None, estimate=None, report=report, planner_version="played")


if __name__ == "__main__":
    worker.perform = play
    worker.main()
