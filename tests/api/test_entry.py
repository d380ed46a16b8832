"""Ctrl-C while the command line is still being imported: one line and exit status 130, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from api import entry

ROOT = Path(__file__).resolve().parents[2]
DURING = "import signal; signal.raise_signal(signal.SIGINT)\n"


def after_an_interrupt_in(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the entry with a module in place of one that the command line imports, which is interrupted there."""
    (folder / f"{module}.py").write_text(DURING)
    code = "import sys; from api.entry import main; sys.exit(main())"
    path = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-c", code, "--version"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("module", ["typer"])
def test_an_interrupt_during_an_import_is_one_line(module: str, tmp_path: Path) -> None:
    done = after_an_interrupt_in(module, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_the_command_begins_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"pipeplan": f"{entry.__name__}:main"}


def test_the_entry_runs_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeplan", "--version"])
    assert entry.main() == 0
    assert capsys.readouterr().out.startswith("pipeplan ")
