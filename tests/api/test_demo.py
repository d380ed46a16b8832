"""The demo: the whole main job with a tiny model, and as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import api.demo
from api.demo_service import child_processes, is_gone, running_service
from planner.errors import RunError

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")


def test_the_demo_does_the_whole_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = {**api.demo.MODEL, "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64}
    monkeypatch.setattr(api.demo, "MODEL", tiny)
    monkeypatch.setattr(api.demo, "NUM_STEPS", 3)
    monkeypatch.setenv("COLUMNS", "100")
    assert api.demo.main() == 0
    said = capsys.readouterr().out
    assert [f"[{number}/6]" in said for number in range(1, 7)] == [True] * 6
    assert said.count("PASS") == 3
    assert "FAIL" not in said


def test_a_run_that_differs_fails_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from planner.runtime.report import Noise, RunReport

    wrong = RunReport(
        steps=1,
        num_warm_up=0,
        losses=(1.0,),
        iteration_time_s=1.0,
        iteration_time_min_s=1.0,
        iteration_time_max_s=1.0,
        iteration_times_s=(1.0,),
        stages=(),
        noise=Noise(run_queue_shares=(), num_clean=0, pinned=True),
        loss_relative_difference=0.0,
        gradient_max_difference=2e-5,
    )
    monkeypatch.setattr(api.demo, "_main_job", lambda folder: wrong)
    assert api.demo.main() == 1
    assert "FAIL" in capsys.readouterr().err


def test_the_service_is_there_inside_and_gone_outside(tmp_path: Path) -> None:
    with running_service(tmp_path) as client:
        assert "gpt2-small" in client.catalogue()["models"]
    assert not client.is_ready()


def test_a_service_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "plans.sqlite").mkdir()
    with pytest.raises(RunError, match="did not become ready"), running_service(tmp_path):
        pass


def test_a_group_without_processes_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    assert not is_gone(process.pid)
    assert process.pid in child_processes()
    process.communicate(b"\n")
    assert is_gone(process.pid)
    assert process.pid not in child_processes()


def test_what_is_left_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="folder"):
        api.demo._check_nothing_is_left(tmp_path, set())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(RunError, match=str(process.pid)):
            api.demo._check_nothing_is_left(tmp_path / "gone", set())
        process.communicate(b"\n")


@pytest.mark.slow
def test_the_demo_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-m", "api.demo"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS in" in done.stdout
