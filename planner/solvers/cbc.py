"""CBC, the solver that PuLP brings along, as a child process that never outlives the call."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.solvers.base import MODEL_FILE, Answer, SolverStatus, less
from planner.solvers.process import LOG_FILE, last_line, read, run_solver

START_FILE, SOLUTION_FILE = "start.mst", "solution.txt"

BOUND_MARGIN = 1e-5
"""Relative margin taken off the bound: the log prints about seven digits, rounded."""


class Cbc:
    """One process per call; `path` names another binary."""

    name = "cbc"

    def __init__(self, path: str = "") -> None:
        self._path = path

    def available(self) -> bool:
        """Whether PuLP's binary, or one on the PATH, can be run."""
        return bool(self.path())

    def version(self) -> str:
        """What the binary says of itself."""
        said = subprocess.run([self.path(), "-stop"], capture_output=True, text=True, timeout=30, check=False).stdout
        found = re.search(r"Version:\s*(\S+)", said)
        return f"CBC {found.group(1)}" if found else "CBC"

    def path(self) -> str:
        """The binary: the given one, PuLP's, or the one on the PATH; empty when there is none."""
        if self._path:
            return self._path
        with contextlib.suppress(ImportError, AttributeError):
            bundled = str(importlib.import_module("pulp.apis.coin_api").pulp_cbc_path)
            if os.access(bundled, os.X_OK):
                return bundled
        return shutil.which("cbc") or ""

    def solve(self, model: Any, *, limit_s: float, seed: int, start: Mapping[str, float]) -> Answer:
        """See `MilpSolver`. One thread, gap 0; killed soon after the limit whatever it does."""
        with tempfile.TemporaryDirectory(prefix="pipeplan-milp-") as name:
            folder = Path(name)
            model.writeMPS(str(folder / MODEL_FILE))
            if start:
                (folder / START_FILE).write_text(_mip_start(start))
            run_solver([self.path(), *_cbc_arguments(limit_s, seed, bool(start))], folder, limit_s)
            wanted = [variable.name for variable in model.variables()]
            return _cbc_answer(read(folder / SOLUTION_FILE), read(folder / LOG_FILE), wanted)


def _cbc_arguments(limit_s: float, seed: int, warm: bool) -> list[str]:
    """Typed numbers only; file names are relative to the private folder."""
    mips = ["-mips", START_FILE] if warm else []
    limit = ["-sec", f"{max(limit_s, 0.01):.3f}", "-timeMode", "elapsed", "-threads", "1"]
    exact = ["-ratio", "0", "-allow", "0", "-randomCbcSeed", str(seed % 2**31)]
    return [MODEL_FILE, *mips, *limit, *exact, "-solve", "-printingOptions", "all", "-solution", SOLUTION_FILE]


def _mip_start(start: Mapping[str, float]) -> str:
    rows = [f"{number:7d} {name} {value:.0f} 0" for number, (name, value) in enumerate(start.items())]
    return "\n".join(["Stopped on time - objective value 0", *rows, ""])


def _cbc_answer(solution: str, log: str, wanted: list[str]) -> Answer:
    """Status from the first line of the solution file, values only when every variable is there."""
    head, _, body = solution.partition("\n")
    head = head.strip()
    if "nfeasible" in head:
        return Answer(status=SolverStatus.INFEASIBLE, values={}, bound=None, words=head)
    bound = _last_bound(log)
    if not head or "no integer solution" in head:
        stopped = bool(head) or "Stopped" in log or bound is not None
        status = SolverStatus.LIMIT if stopped else SolverStatus.FAILED
        return Answer(status=status, values={}, bound=less(bound, BOUND_MARGIN), words=head or last_line(log, "CBC"))
    values = _cbc_values(body)
    if any(name not in values for name in wanted):
        return Answer(status=SolverStatus.FAILED, values={}, bound=None, words=f"{head}: the solution file is cut off")
    if head.startswith("Optimal"):
        proven = float(head.rsplit(" ", 1)[1])
        return Answer(status=SolverStatus.OPTIMAL, values=values, bound=less(proven, BOUND_MARGIN), words=head)
    return Answer(status=SolverStatus.FEASIBLE, values=values, bound=less(bound, BOUND_MARGIN), words=head)


def _cbc_values(body: str) -> dict[str, float]:
    """Rows are `index name value reduced cost`, marked with ** where CBC itself sees a violation."""
    values: dict[str, float] = {}
    for line in body.splitlines():
        fields = line.replace("**", " ").split()
        if len(fields) == 4:
            values[fields[1]] = float(fields[2])
    return values


def _last_bound(log: str) -> float | None:
    """The last `best possible` of the log (`Lower bound:` is rounded to three decimals, upwards: never used)."""
    found = re.findall(r"best possible (-?[0-9.]+(?:e[+-]?[0-9]+)?)", log)
    bound = float(found[-1]) if found else None
    return bound if bound is not None and abs(bound) < 1e40 else None  # CBC writes 1e+50 for "unknown"
