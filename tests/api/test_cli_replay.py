"""`pipeplan run --replay-rank`: one rank alone beside what was predicted for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Call, call
from test_cli_run_executors import FACTORY

from planner import codec

pytest.importorskip("torch")

from planner.runtime import ReplayReport

__all__ = ["call"]


def test_one_rank_is_replayed(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "replayed_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    words = ("--cluster", "local:2@1GiB", "--global-batch", "4", "--microbatch", "1", "--num-stages", "2")
    assert call("plan", "replayed_factory:make", *words, "-o", "plan.json").status == 0
    said = call("run", "plan.json", "--replay-rank", "1", "--steps", "3")
    assert said.status == 0, said.err
    for part in ("Rank 1 (cpu1) alone", "busy ms per iteration", "memory MiB", "predicted", "measured"):
        assert part in said.out
    report = codec.loads(ReplayReport, call("run", "plan.json", "--replay-rank", "0", "--steps", "1", "--json").out)
    assert (report.rank, report.devices, report.steps) == (0, ("cpu0",), 1)
    assert set(report.passes_s) == {"0F", "0B"}
    missing = call("run", "plan.json", "--replay-rank", "2")
    assert missing.status == 2
    assert "the plan has no rank 2: replay one of 0 to 1" in missing.err
