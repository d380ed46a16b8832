"""`pipeplan run` with our own executor, checkpoints, and the measured timeline beside the simulated one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import Call, call

from planner import codec

pytest.importorskip("torch")

from planner.runtime import RunReport

__all__ = ["call"]
FACTORY = """
import torch

def batches(size, seed):
    inputs = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    return (inputs,), inputs

def make():
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    return model, batches, torch.nn.functional.mse_loss
"""


def test_run_save_load_and_export_what_was_measured(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    words = ("--cluster", "local:2@1GiB", "--global-batch", "4", "--microbatch", "1", "--num-stages", "2")
    assert call("plan", "small_factory:make", *words, "-o", "plan.json").status == 0
    first = call("run", "plan.json", "--steps", "2", "--check", "--executor", "own", "--save", "state", "--json")
    assert first.status == 0, first.err
    before = codec.loads(RunReport, first.out)
    assert before.gradient_max_difference is not None
    assert before.gradient_max_difference < 1e-5
    second = call("run", "plan.json", "--steps", "2", "--executor", "torch", "--load", "state", "--json")
    assert second.status == 0, second.err
    assert codec.loads(RunReport, second.out).losses[0] != before.losses[0]
    (tmp_path / "report.json").write_text(first.out)
    drawn = call("export", "plan.json", "--to", "chrome_trace", "--measured", "report.json")
    assert drawn.status == 0, drawn.err
    names = [event["args"]["name"] for event in json.loads(drawn.out)["traceEvents"] if event["name"] == "process_name"]
    assert len(names) == 4
    assert [name.startswith("measured ") for name in names] == [False, False, True, True]


def test_a_folder_without_a_checkpoint_is_bad_input(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    words = ("--cluster", "local:2@1GiB", "--global-batch", "4", "--microbatch", "1", "--num-stages", "2")
    assert call("plan", "small_factory:make", *words, "-o", "plan.json").status == 0
    said = call("run", "plan.json", "--load", "nowhere")
    assert said.status == 2
    assert "nowhere holds no checkpoint" in said.err
