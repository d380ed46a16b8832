"""HiGHS, as a child process that never outlives the call: see `highs_worker`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.solvers import highs_worker
from planner.solvers.base import MODEL_FILE, Answer, SolverStatus, less
from planner.solvers.highs_worker import ANSWER_FILE, JOB_FILE
from planner.solvers.process import LOG_FILE, last_line, read, run_solver

BOUND_MARGIN = 1e-6
"""Relative margin taken off the dual bound: tolerances are 1e-7 to 1e-6 on rows of order 1 to 1000."""

INFEASIBLE = ("kInfeasible", "kUnboundedOrInfeasible")
"""Nothing here is unbounded below."""

STOPPED = ("kTimeLimit", "kInterrupt", "kSolutionLimit", "kIterationLimit")


class Highs:
    """HiGHS through highspy: double-precision bound, warm start from the integer variables."""

    name = "highs"

    def available(self) -> bool:
        """Whether highspy is installed."""
        return importlib.util.find_spec("highspy") is not None

    def version(self) -> str:
        """The version of highspy, which is that of the library in it."""
        return f"HiGHS {importlib.metadata.version('highspy')}"

    def solve(self, model: Any, *, limit_s: float, seed: int, start: Mapping[str, float]) -> Answer:
        """See `MilpSolver`. One thread, gap 0; killed soon after the limit whatever it does."""
        deadline_s = time.monotonic() + limit_s
        with tempfile.TemporaryDirectory(prefix="pipeplan-milp-") as name:
            folder = Path(name)
            model.writeMPS(str(folder / MODEL_FILE))
            job = {"deadline_s": deadline_s, "seed": seed % 2**31, "start": dict(start)}
            (folder / JOB_FILE).write_text(json.dumps(job))
            run_solver([sys.executable, "-P", str(Path(highs_worker.__file__).resolve())], folder, limit_s)
            late = time.monotonic() > deadline_s
            return _highs_answer(read(folder / ANSWER_FILE), read(folder / LOG_FILE), late)


def _highs_answer(written: str, log: str, late: bool) -> Answer:
    """What the worker found; without a word from it the limit ended it if it was `late`, else a fault of its own."""
    if not written:
        status = SolverStatus.LIMIT if late else SolverStatus.FAILED
        return Answer(status=status, values={}, bound=None, words=last_line(log, "HiGHS"))
    found = json.loads(written)
    status = _status(found["status"], bool(found["values"]))
    if status in (SolverStatus.INFEASIBLE, SolverStatus.FAILED):
        return Answer(status=status, values={}, bound=None, words=found["words"])
    bound = less(found["bound"], BOUND_MARGIN)
    return Answer(status=status, values=found["values"], bound=bound, words=found["words"])


def _status(said: str, has_solution: bool) -> SolverStatus:
    if said in INFEASIBLE:
        return SolverStatus.INFEASIBLE
    if said == "kOptimal" and has_solution:
        return SolverStatus.OPTIMAL
    if said in STOPPED:
        return SolverStatus.FEASIBLE if has_solution else SolverStatus.LIMIT
    return SolverStatus.FAILED
