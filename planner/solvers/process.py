"""Solvers run as child processes that never outlive the call, so that no limit, interrupt or crash harms this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOG_FILE = "solver.log"

GRACE_S = 1.0
"""Solvers look at their limit in some phases only: this long after it they are interrupted, then ended."""

INTERRUPT_S = 0.5
"""How long an interrupted solver has to write its best solution."""

DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, kept by exec
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""A Python program: the process id of the parent, then a command with the full path of its program."""


def run_solver(command: Sequence[str], folder: Path, limit_s: float) -> None:
    """Run in `folder` to the end or to the hard limit. Whatever happens here, no process is left behind.

    What the solver prints goes to `LOG_FILE`.
    """
    with (folder / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            _dying_with_parent(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _await(process, limit_s)
        finally:
            _kill(process)


def read(path: Path) -> str:
    """What a solver wrote, empty where it wrote nothing."""
    return path.read_text(errors="replace") if path.exists() else ""


def last_line(log: str, name: str) -> str:
    """The last words of the solver of this name."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else f"{name} wrote nothing"


def _await(process: subprocess.Popen[bytes], limit_s: float) -> None:
    try:
        process.wait(limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # CBC then stops and writes its best solution
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(INTERRUPT_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _dying_with_parent(command: Sequence[str]) -> list[str]:
    """On Linux, the command behind one that makes the kernel kill it when the thread that started it ends.

    No `preexec_fn`: an interrupt that arrives in the hooks that Python then runs around the fork is lost.
    """
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command]
