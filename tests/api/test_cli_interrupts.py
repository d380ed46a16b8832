"""Ctrl-C and termination in the middle of a MILP solve: an orderly exit, and no solver is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from http_service import wait_for_death
from test_http_processes import DOCUMENTS, _thrice, children_of

pytest.importorskip("highspy")

from neutral import request_bytes


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """A file with a problem on which the solver works far longer than the test."""
    case = next(c for c in json.loads(DOCUMENTS.read_text()) if c["id"] == "feasible-hard-milp-2s")
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(json.loads(request_bytes(_thrice(case["doc"])))["problem"]))
    return path


@pytest.mark.parametrize(
    ("numbers", "status"),
    [((signal.SIGINT,), 130), ((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), 130)],
)
def test_a_signal_during_a_solve_ends_in_order(numbers: tuple[signal.Signals, ...], status: int, problem: Path) -> None:
    words = ["plan", str(problem), "--optimizer", "milp", "--time-limit-s", "100"]
    with subprocess.Popen(
        [sys.executable, "-m", "api.cli", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (solvers := children_of(process.pid)) and process.poll() is None:
            pass
        for number in numbers:
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    assert solvers
    for pid in solvers:
        wait_for_death(pid)
