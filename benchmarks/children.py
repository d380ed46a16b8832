"""Measurements in processes of their own, with a hard deadline and a memory limit."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

START_UP_S = 10.0
"""Granted beyond the search's own limit: importing, reading the instance, leaving."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_child(module: str, arguments: Sequence[str], limit_s: float, memory_gib: float) -> dict[str, Any]:
    """The JSON that `python -m module arguments` prints last; `status` limit or error where it prints none.

    The child and its own children are killed `START_UP_S` after `limit_s`. One thread per numerical library.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ONE_THREAD,
        start_new_session=True,
    ) as child:
        _limit_memory(child.pid, memory_gib)
        try:
            out, err = child.communicate(timeout=limit_s + START_UP_S)
        except subprocess.TimeoutExpired:
            return {"status": "limit", "error": f"killed {START_UP_S:g} s after its limit of {limit_s:g} s"}
        finally:
            _kill(child)
    return _parsed(out, err, child.returncode)


def _limit_memory(pid: int, memory_gib: float) -> None:
    size = int(memory_gib * 2**30)
    if hasattr(resource, "prlimit"):  # Linux
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def _kill(child: subprocess.Popen[str]) -> None:
    """Ends whatever is left of the child's session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _parsed(out: str, err: str, status: int) -> dict[str, Any]:
    lines = out.strip().splitlines()
    if status == 0 and lines:
        values: dict[str, Any] = json.loads(lines[-1])
        return values
    reason = (err.strip().splitlines() or ["no output"])[-1]
    return {"status": "error", "error": f"exit status {status}: {reason[:300]}"}
