"""HiGHS through highspy, in this process."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.solvers.base import GRACE_S, MODEL_FILE, Answer, SolverStatus, less

BOUND_MARGIN = 1e-6
"""Relative margin taken off the dual bound: tolerances are 1e-7 to 1e-6 on rows of order 1 to 1000."""


class Highs:
    """HiGHS through highspy: double-precision bound, warm start from the integer variables."""

    name = "highs"

    def available(self) -> bool:
        """Whether highspy is installed."""
        return importlib.util.find_spec("highspy") is not None

    def version(self) -> str:
        """The library's own version."""
        with _quiet_stdout():
            return f"HiGHS {importlib.import_module('highspy').Highs().version()}"

    def solve(self, model: Any, *, limit_s: float, seed: int, start: Mapping[str, float]) -> Answer:
        """See `MilpSolver`. One thread, gap 0."""
        highspy = importlib.import_module("highspy")
        with _quiet_stdout():  # the constructor prints a banner
            highs = highspy.Highs()
        options = {"output_flag": False, "threads": 1, "random_seed": seed % 2**31, "time_limit": max(limit_s, 0.01)}
        for key, value in {**options, "mip_rel_gap": 0.0, "mip_abs_gap": 1e-7}.items():
            highs.setOptionValue(key, value)
        with tempfile.TemporaryDirectory(prefix="pipeplan-milp-") as folder:
            path = Path(folder) / MODEL_FILE
            model.writeMPS(str(path))
            if highs.readModel(str(path)) == highspy.HighsStatus.kError:
                return Answer(status=SolverStatus.FAILED, values={}, bound=None, words="HiGHS cannot read the model")
        names = list(highs.getLp().col_names_)
        if start:
            _start_highs(highs, names, start)
        _run_highs(highs, limit_s)
        return _highs_answer(highspy, highs, names)


def _run_highs(highs: Any, limit_s: float) -> None:
    """Run in a thread, so that Ctrl-C and the hard limit end it too (HiGHS checks a flag in its callbacks)."""
    highs.HandleUserInterrupt = True
    thread = threading.Thread(target=highs.run, daemon=True)
    thread.start()
    try:
        thread.join(limit_s + GRACE_S)
    finally:
        if thread.is_alive():
            highs.cancelSolve()
            thread.join()


def _start_highs(highs: Any, names: list[str], start: Mapping[str, float]) -> None:
    import numpy as np

    known = [i for i, name in enumerate(names) if name in start]
    values = np.array([start[names[i]] for i in known], dtype=float)
    highs.setSolution(len(known), np.array(known, dtype=np.int32), values)


def _highs_answer(highspy: Any, highs: Any, names: list[str]) -> Answer:
    status, info = highs.getModelStatus(), highs.getInfo()
    kinds, words = highspy.HighsModelStatus, highs.modelStatusToString(status)
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):  # nothing here is unbounded below
        return Answer(status=SolverStatus.INFEASIBLE, values={}, bound=None, words=words)
    has_solution = info.primal_solution_status == 2  # 2 is "feasible" in HiGHS's enumeration
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else None
    values = dict(zip(names, highs.getSolution().col_value, strict=True)) if has_solution else {}
    if status == kinds.kOptimal and has_solution:
        found = SolverStatus.OPTIMAL
    elif status in (kinds.kTimeLimit, kinds.kInterrupt, kinds.kSolutionLimit, kinds.kIterationLimit):
        found = SolverStatus.FEASIBLE if has_solution else SolverStatus.LIMIT
    else:
        found = SolverStatus.FAILED
    return Answer(status=found, values=values, bound=less(bound, BOUND_MARGIN), words=words)


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Send what C code writes on file descriptor 1 nowhere."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
