"""Ctrl-C in the middle of any optimizer's search: an orderly exit, no child process and no temporary file left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from http_service import wait_for_death
from test_http_processes import children_of

from benchmarks.long_graphs import long_chain, problem_of
from planner.codec import dumps
from planner.optimizers.base import OPTIMIZERS
from planner.problem import Problem

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

BUSY_S = 1.5
"""CPU seconds after which a search has begun (start-up takes about half of one)."""
WORDS = {
    "chain_dp": ("--replication", "none"),
    "exhaustive": ("--objective", "throughput"),
    "hierarchical_dp": ("--cost-model", "pipedream", "--objective", "throughput", "--replication", "none"),
    "ideal_dp": ("--objective", "throughput", "--replication", "none"),
    "order_dp": ("--objective", "throughput", "--replication", "none"),
}
"""What an optimizer asks for beside its name; the others minimise the iteration time."""


def wide_graph(layers: int, width: int) -> tuple[int, list[tuple[int, int]]]:
    """Layers and arcs of a graph of several rows in which every layer reads two of the row before."""
    arcs = [
        ((row - 1) * width + (i + step) % width, row * width + i)
        for row in range(1, layers // width)
        for i in range(width)
        for step in (0, 3)
    ]
    return layers, sorted(arcs)


def long_problem(name: str) -> Problem:
    """A problem on which the optimizer works far longer than the test."""
    if name in ("ideal_dp", "order_dp"):
        return problem_of(wide_graph(1200, 12), 32)
    if name == "exhaustive":
        return problem_of((13, [(i, i + 1) for i in range(12)]), 13)
    if name == "hierarchical_dp":
        return problem_of(long_chain(1500), 16, training=True)
    if name == "multilevel":
        return problem_of(long_chain(4000), 64, training=True)
    searched = problem_of(long_chain(600), 256, training=True)
    return replace(searched, workload=replace(searched.workload, microbatch_size=None))


def _until_busy(process: subprocess.Popen[str]) -> Iterator[int]:
    """The process's children, again and again until it has used `BUSY_S` CPU seconds or has ended."""
    stat, tick = Path(f"/proc/{process.pid}/stat"), os.sysconf("SC_CLK_TCK")
    while process.poll() is None:
        yield from children_of(process.pid)
        values = stat.read_text().rpartition(") ")[2].split()
        if (int(values[11]) + int(values[12])) / tick >= BUSY_S:
            return


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_ctrl_c_ends_the_search_in_order(name: str, tmp_path: Path) -> None:
    path, temporary = tmp_path / "problem.json", tmp_path / "temporary"
    path.write_text(dumps(long_problem(name)))
    temporary.mkdir()
    words = ["plan", str(path), "--optimizer", name, "--time-limit-s", "100", *WORDS.get(name, ())]
    with subprocess.Popen(
        [sys.executable, "-m", "api.cli", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        children = set(_until_busy(process))
        children |= set(children_of(process.pid))
        interrupted = process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == (130 if interrupted else 0), errors
    assert list(temporary.iterdir()) == []
    for pid in children:
        wait_for_death(pid)
