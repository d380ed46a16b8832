"""`pipeplan measure-links`, for real: two processes, a cluster file, and a plan on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commandline import Call, call

from planner.runtime.environment import child_environment
from profiles.clusters import read_cluster

pytest.importorskip("torch")

from profiles.measuring.links import device_ids

__all__ = ["call"]


def test_two_processes_give_a_cluster_that_can_be_planned_for(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    said = call("measure-links", "--processes", "2", "--sizes", "4KiB,1MiB", "--repeats", "3", "-o", path)
    assert said.status == 0, said.err
    assert "cpu0 - cpu1" in said.err
    cluster = read_cluster(path)
    (link,) = cluster.links
    assert (link.a, link.b) == ("cpu0", "cpu1")
    assert link.bandwidth_bytes_per_s > 0 <= link.latency_s
    planned = call(
        "plan", "gpt2-small", "--cluster", path, "--global-batch", "4", "--time-limit-s", "5", "--json",
    )  # fmt: skip
    assert planned.status in (0, 3), planned.err  # 3: not enough memory on this machine


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--processes", "99"), "give 2 to 16"),
        (("--sizes", "4KiB"), "give at least two"),
        (("--sizes", "4KiB,4KiB"), "give at least two"),
        (("--sizes", "4KiB,9TB"), "from 1 byte to 1 GiB"),
        (("--sizes", "big,small"), "80GiB"),
        (("--device", "L4"), "under torchrun"),
        (("-o", "no/such/folder/x.json"), "no/such/folder"),
    ],
)
def test_bad_requests_are_refused(call: Call, words: tuple[str, ...], message: str) -> None:
    said = call("measure-links", *words)
    assert said.status == 2
    assert message in said.err


def test_ranks_need_a_device_type(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "name it with --device" in call("measure-links").err
    refused = call("measure-links", "--device", "T1000")
    assert refused.status == 2
    assert "T1000" in refused.err


def test_a_torchrun_job_measures_itself(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    words = ["measure-links", "--device", "cpu-core", "--sizes", "4KiB,64KiB", "--repeats", "2", "-o", str(path)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "api.cli"]
    said = subprocess.run([*launch, *words], capture_output=True, text=True, env=child_environment(), check=False)
    assert said.returncode == 0, said.stderr
    cluster = read_cluster(path)
    assert [device.id for device in cluster.devices] == ["cpu0", "cpu1"]
    assert len(cluster.links) == 1


def test_devices_are_called_as_in_short_forms() -> None:
    assert device_ids(["a", "a"], "gpu") == (["gpu0", "gpu1"], ["node0", "node0"])
    ids, nodes = device_ids(["a", "a", "b", "b"], "gpu")
    assert ids == ["node0/gpu0", "node0/gpu1", "node1/gpu0", "node1/gpu1"]
    assert nodes == ["node0", "node0", "node1", "node1"]
