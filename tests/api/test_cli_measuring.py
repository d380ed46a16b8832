"""`pipeplan profile` measures, says how, and compares with an earlier profile; progress says what is left."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from commandline import Call, call

from api.terminal import progress
from planner import codec
from planner.profile import CostTable, LayerCost, Measurement, Profile
from profiles.model import ProfiledModel

__all__ = ["call"]
TINY = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2,
    "n_positions": 16, "vocab_size": 64,
}  # fmt: skip


def _profile(tmp_path: Path, name: str, factor: float, reference_s: float) -> Path:
    from planner.graph import Layer, LayerGraph

    cost = LayerCost(forward_s=factor, backward_s=2 * factor)
    table = CostTable(
        microbatch_size=1,
        layers={"a": cost, "b": cost},
        measurement=Measurement(num_chains=16, reference_s=reference_s),
    )
    model = ProfiledModel(
        graph=LayerGraph(layers=(Layer(id="a"), Layer(id="b"))),
        profiles=(Profile(device_type="cpu-core", tables=(table,)),),
    )
    path = tmp_path / name
    path.write_text(codec.dumps(model))
    return path


def test_two_files_are_compared(call: Call, tmp_path: Path) -> None:
    earlier = _profile(tmp_path, "earlier.json", 0.1, 0.001)
    later = _profile(tmp_path, "later.json", 0.102, 0.001)
    said = call("profile", later, "--against", earlier)
    assert said.status == 0
    assert "at most 2.0% apart, the profiles agree" in said.err
    assert codec.loads(ProfiledModel, said.out) == codec.loads(ProfiledModel, later.read_text())


def test_drift_of_the_host_is_said(call: Call, tmp_path: Path) -> None:
    earlier = _profile(tmp_path, "earlier.json", 0.1, 0.001)
    later = _profile(tmp_path, "later.json", 0.11, 0.0011)
    assert "the host drifted (reference workload +10.0%" in " ".join(
        call("profile", later, "--against", earlier).err.split()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpt2-small", "--device", "L4", "--against", "missing.json"), "missing.json"),
        (("gpt2-small", "--on", "cpu"), "only a model that can be built is measured"),
        (("config.json", "--on", "cuda"), "name the GPU's with --device"),
        (("config.json", "--on", "cuda:7", "--device", "L4"), "torch sees 0 GPUs"),
        (("config.json", "--on", "meta", "--device", "L4"), "measured on cpu and cuda"),
    ],
)
def test_what_cannot_be_measured_or_compared(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    if "cuda:7" in words or "meta" in words:
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    said = call("profile", *words)
    assert said.status == 2
    assert message in said.err


def test_a_measured_profile_says_its_surroundings(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    said = call("profile", "config.json", "--microbatch-sizes", "1", "--repeats", "5", "--sequence-length", "8")
    (profile,) = codec.loads(ProfiledModel, said.out).profiles
    assert profile.provenance.environment["threads"] == "1"
    (table,) = profile.tables
    assert table.measurement is not None
    assert table.measurement.num_chains == 5
    assert table.layers["transformer.h.1"].backward_weight_s


def test_progress_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    shown = io.StringIO()
    watched = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "remarks", lambda: watched)
    with progress.progress_bar("measuring") as advance:
        advance(3, 4, "microbatch size 1: seconds")
    assert "microbatch size 1: seconds" in shown.getvalue()
    assert "3/4" in shown.getvalue()
    assert "left:" in shown.getvalue()
