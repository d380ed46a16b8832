"""Calling `pipeplan` in this process, and small documents for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli import main
from api.plan_file import PlanFile
from planner import codec

INSTANCES = Path(__file__).resolve().parents[1] / "instances"
GPT2 = ("plan", "gpt2-small", "--cluster", "4xL4", "--global-batch", "16")


@dataclass(frozen=True, kw_only=True)
class Called:
    """What one call said: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


Call = Callable[..., Called]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command line in a terminal of usual width: `call("plan", "gpt2-small", ...)`."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> Called:
        capsys.readouterr()
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Called(status=status, out=captured.out, err=captured.err)

    return run


def plan_file(path: Path) -> PlanFile:
    """The plan file at `path`."""
    return codec.loads(PlanFile, path.read_bytes())
