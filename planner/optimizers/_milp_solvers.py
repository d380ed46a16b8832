"""MILP solvers behind one interface: CBC as a process of ours, HiGHS in this process.

Both read the MPS file that PuLP writes into a private folder, so that both solve the same model. Nothing but numbers
reaches them: no names of the user's, no free-form options. Nothing that they say is believed unchecked: values are
handed over only with a solution, and what they mean is priced again by the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

MODEL_FILE, START_FILE, SOLUTION_FILE, LOG_FILE = "model.mps", "start.mst", "solution.txt", "solver.log"

GRACE_S = 3.0
"""CBC looks at its limit in some phases only: this long after the limit it is interrupted, then killed."""

INTERRUPT_S = 2.0
"""How long an interrupted CBC has to write its best solution."""

HIGHS_BOUND_MARGIN = 1e-6
"""Relative margin taken off HiGHS's dual bound: its tolerances are 1e-7 to 1e-6 on rows of order 1 to 1000."""

CBC_BOUND_MARGIN = 1e-5
"""The same for CBC, whose log prints about seven digits, rounded."""


class SolverStatus(StrEnum):
    """How a solver ended. `feasible`: a limit was reached with a solution; `limit`: without one."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solver found: values by variable name (empty without a solution), a lower bound or None, its words."""

    status: SolverStatus
    values: Mapping[str, float]
    bound: float | None
    words: str = ""


class MilpSolver(Protocol):
    """One solver. `name` is how reports call it."""

    name: str

    def available(self) -> bool:
        """Whether it can run here."""

    def version(self) -> str:
        """Name and version for reports."""

    def solve(self, model: Any, *, limit_s: float, seed: int, start: Mapping[str, float]) -> Answer:
        """Minimise a `pulp.LpProblem`. `start` holds the integer variables of a known solution; may be empty."""


def choose_solver(name: str = "") -> MilpSolver | None:
    """The named solver, or HiGHS where it can be imported, else CBC; None when there is none."""
    for solver in (Highs(), Cbc()):
        if name in ("", solver.name) and solver.available():
            return solver
    return None


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
    return Answer(status=found, values=values, bound=_less(bound, HIGHS_BOUND_MARGIN), words=words)


class Cbc:
    """CBC, the solver that PuLP brings along, as a child process that never outlives the call."""

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
            _run([self.path(), *_cbc_arguments(limit_s, seed, bool(start))], folder, limit_s)
            wanted = [variable.name for variable in model.variables()]
            return _cbc_answer(_read(folder / SOLUTION_FILE), _read(folder / LOG_FILE), wanted)


def _cbc_arguments(limit_s: float, seed: int, warm: bool) -> list[str]:
    """Typed numbers only; file names are relative to the private folder."""
    mips = ["-mips", START_FILE] if warm else []
    limit = ["-sec", f"{max(limit_s, 0.01):.3f}", "-timeMode", "elapsed", "-threads", "1"]
    exact = ["-ratio", "0", "-allow", "0", "-randomCbcSeed", str(seed % 2**31)]
    return [MODEL_FILE, *mips, *limit, *exact, "-solve", "-printingOptions", "all", "-solution", SOLUTION_FILE]


def _mip_start(start: Mapping[str, float]) -> str:
    rows = [f"{number:7d} {name} {value:.0f} 0" for number, (name, value) in enumerate(start.items())]
    return "\n".join(["Stopped on time - objective value 0", *rows, ""])


def _run(command: list[str], folder: Path, limit_s: float) -> None:
    """Run to the end or to the hard limit. Whatever happens here, no process is left behind."""
    with (folder / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
        try:
            process.wait(limit_s + GRACE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # CBC then stops and writes its best solution
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(INTERRUPT_S)
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux, what makes the kernel kill the child when the thread that started it ends."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    set_death_signal = 1  # PR_SET_PDEATHSIG

    def arm() -> None:
        libc.prctl(set_death_signal, signal.SIGKILL)

    return arm


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


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
        return Answer(status=status, values={}, bound=_less(bound, CBC_BOUND_MARGIN), words=head or _last_line(log))
    values = _cbc_values(body)
    if any(name not in values for name in wanted):
        return Answer(status=SolverStatus.FAILED, values={}, bound=None, words=f"{head}: the solution file is cut off")
    if head.startswith("Optimal"):
        proven = float(head.rsplit(" ", 1)[1])
        return Answer(status=SolverStatus.OPTIMAL, values=values, bound=_less(proven, CBC_BOUND_MARGIN), words=head)
    return Answer(status=SolverStatus.FEASIBLE, values=values, bound=_less(bound, CBC_BOUND_MARGIN), words=head)


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


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "CBC wrote nothing"


def _less(bound: float | None, margin: float) -> float | None:
    return None if bound is None else bound - margin * max(1.0, abs(bound))


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
