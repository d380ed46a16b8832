"""The main job on the command line, for real: profile here, plan for two cores, run on two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import Call, call, plan_file

from planner import codec
from profiles.model import ProfiledModel

pytest.importorskip("torch")
pytest.importorskip("transformers")

__all__ = ["call"]
TINY: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 2,
    "n_embd": 32,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
FACTORY = """
import os
import torch

def batches(size, seed):
    if "TOLD" in os.environ:
        with open(os.environ["TOLD"], "w") as told:
            told.write("running")
    inputs = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    return (inputs,), inputs

def make():
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    return model, batches, torch.nn.functional.mse_loss
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a configuration and a factory."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "tiny_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_profile_plan_and_run_a_configuration(call: Call, folder: Path) -> None:
    assert call("profile", "config.json", "--microbatch-sizes", "1,2", "-o", "profile.json").status == 0
    model = codec.loads(ProfiledModel, (folder / "profile.json").read_bytes())
    assert model.source is not None
    assert model.source.config == TINY
    assert model.profiles[0].device_type == "cpu-core"
    words = ("--cluster", "local:2@1GiB", "--global-batch", "4", "--microbatch", "1", "--num-stages", "2")
    assert call("plan", "profile.json", *words, "-o", "plan.json").status == 0
    (folder / "config.json").unlink()  # the plan file holds all that a run needs
    said = call("run", "plan.json", "--steps", "3", "--check")
    assert said.status == 0, said.err
    assert said.out.count("PASS") == 2
    for part in ("Predicted beside measured", "iteration predicted", "iteration measured", "peak memory measured"):
        assert part in said.out


def test_a_plan_in_bf16_trains_in_bf16(call: Call, folder: Path) -> None:
    words = ("--cluster", "local:2@1GiB", "--global-batch", "4", "--microbatch", "1", "--num-stages", "2")
    assert call("plan", "config.json", *words, "--precision", "bf16", "-o", "plan.json").status == 0
    said = call("run", "plan.json", "--steps", "1", "--check", "--save", "state")
    assert said.status == 0, said.err
    assert said.out.count("PASS") == 2
    assert call("plan", "config.json", *words, "--optimizer-bytes", "4", "-o", "plan.json").status == 0
    said = call("run", "plan.json", "--steps", "1")
    assert said.status == 2
    assert "4 + 4 + 4 bytes per parameter for costs in float32: use 4 + 4 + 8" in said.err


def test_a_configuration_is_measured_for_local_cores_and_priced_for_others(call: Call, folder: Path) -> None:
    common = ("--global-batch", "4", "--microbatch", "2", "-o", "plan.json")
    assert call("plan", "config.json", "--cluster", "local:2@1GiB", *common).status == 0
    local = plan_file(folder / "plan.json")
    assert "measured" in local.problem.profiles[0].provenance.method
    assert [table.microbatch_size for table in local.problem.profiles[0].tables] == [2]
    assert call("plan", ".", "--cluster", "2xL4", *common).status == 0
    far = plan_file(folder / "plan.json")
    assert "analytic" in far.problem.profiles[0].provenance.method
    assert far.source is not None
    assert len(far.problem.graph.layers) == len(local.problem.graph.layers)


def test_a_plan_for_inference_is_not_trained(call: Call, folder: Path) -> None:
    words = ("--cluster", "2xL4", "--global-batch", "4", "--microbatch", "2", "--inference")
    assert call("plan", "config.json", *words, "-o", "plan.json").status == 0
    said = call("run", "plan.json", "--steps", "1")
    assert said.status == 2
    assert "the plan is for inference, and run trains: plan the training workload" in said.err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_factory_is_run_and_a_signal_leaves_no_process(
    number: signal.Signals, status: int, call: Call, folder: Path
) -> None:
    words = ("--cluster", "local:2@1GiB", "--global-batch", "4", "--microbatch", "1", "--num-stages", "2")
    assert call("plan", "tiny_factory:make", *words, "-o", "plan.json").status == 0
    told = folder / "told"
    os.mkfifo(told)
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli", "run", "plan.json", "--steps", "100000"],
        env={**os.environ, "TOLD": str(told), "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert told.read_text()  # blocks until a rank asks for its first batch
    ranks = children(process.pid)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in errors
    assert len(ranks) == 2
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []


def children(parent: int) -> list[int]:
    """Processes that `parent` started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
        except OSError:  # it ended meanwhile
            continue
        if int(text.rpartition(")")[2].split()[1]) == parent:
            found.append(int(status.parent.name))
    return found
