"""How cost grows: CPU seconds and memory of `plan()` by layers, ideals, stages and devices.

Run as `python -m benchmarks.scale [--limit-s 20] [--only SWEEP] [--json FILE] [--svg FILE]`. Four sweeps: `layers`
(long chains with side branches on 64 devices, both objectives), `ideals` (two parallel chains on 8 devices,
(n/2 + 1)^2 ideals), `stages` (512 layers in a given number of stages), all seeded graphs of `benchmarks.long_graphs`;
and `devices` (recorded models on 8 to 16,384 H100: depth, replication, microbatches and schedule searched). One process
per row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.children import run_child
from benchmarks.plots import Panel, svg
from benchmarks.proof import write_rows
from planner.options import Objective

MEMORY_GIB = 4.0
MOST_DEVICES = 64
MODELS = (
    ("llama-3-8b", 1, 32, (8, 64, 512, 4096, 16_384)),
    ("llama-3-70b", 8, 80, (64, 512, 4096, 16_384)),
    ("llama-3.1-405b", 8, 126, (512, 4096, 16_384)),
)
"""Recorded model, tensor degree, blocks, devices."""
GENERATED = ("chain", "parallel")
Row = dict[str, Any]
COLUMNS = (
    "sweep", "graph", "layers", "ideals", "devices", "objective_kind", "stages", "status", "gap", "iteration_gap",
    "found_by", "proved_by", "cpu_s", "wall_s", "rss_mib",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of a sweep; `ideals` where a formula gives them."""

    sweep: str
    shape: str
    size: int
    layers: int
    devices: int
    objective: Objective = Objective.THROUGHPUT
    ideals: int | None = None
    stages: int | None = None


def cases() -> Iterator[Case]:
    """All points of the sweeps, the cheap ones first."""
    for objective in (Objective.THROUGHPUT, Objective.ITERATION_TIME):
        for n in (32, 64, 128, 256, 512, 1024, 4000, 20_000):
            devices = min(MOST_DEVICES, n // 2)
            yield Case(sweep="layers", shape="chain", size=n, layers=n, devices=devices, objective=objective)
    for length in (10, 30, 70, 150, 220):
        ideals = (length + 1) ** 2
        yield Case(sweep="ideals", shape="parallel", size=length, layers=2 * length, devices=8, ideals=ideals)
    for stages in (2, 4, 8, 16, 32, 64, 128, 256):
        yield Case(sweep="stages", shape="chain", size=512, layers=512, devices=256, stages=stages)
    for model, tensor, layers, counts in MODELS:
        for devices in counts:
            yield Case(
                sweep="devices",
                shape=model,
                size=tensor,
                layers=layers,
                devices=devices,
                objective=Objective.ITERATION_TIME,
            )


def measure(case: Case, limit_s: float, memory_gib: float) -> Row:
    """The row of one point."""
    stages = str(case.stages or "free")
    arguments = [case.shape, str(case.size), str(case.devices), case.objective.value, str(limit_s), stages]
    asked = {
        "sweep": case.sweep,
        "graph": case.shape,
        "layers": case.layers,
        "ideals": case.ideals,
        "devices": case.devices,
        "objective_kind": case.objective.value,
    }
    return (
        asked | dict.fromkeys(COLUMNS[len(asked) :]) | run_child("benchmarks.scaling", arguments, limit_s, memory_gib)
    )


def table(rows: Iterable[Row]) -> Table:
    """One line per row."""
    made = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        made.add_row(*(_cell(row.get(name)) for name in COLUMNS))
    return made


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def picture(rows: list[Row]) -> str:
    """CPU seconds and memory over each sweep, of the rows that found a plan."""
    panels = []
    for sweep in dict.fromkeys(row["sweep"] for row in rows):
        for value, unit in (("cpu_s", "CPU seconds"), ("rss_mib", "peak MiB")):
            lines = _lines([row for row in rows if row["sweep"] == sweep], sweep, value)
            if lines:
                panels.append(Panel(title=f"{unit} by {sweep}", x=sweep, y=unit, lines=lines))
    return svg(panels)


def _lines(rows: list[Row], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get("objective") and row[y]:
            generated = row.get("graph", "chain") in GENERATED
            lines.setdefault(row["objective_kind"] if generated else row["graph"], []).append((row[x], row[y]))
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--limit-s", type=float, default=20.0, help="time limit of each search")
    parser.add_argument("--memory-gib", type=float, default=MEMORY_GIB, help="address space of each search")
    parser.add_argument("--only", choices=("layers", "ideals", "stages", "devices"), help="one sweep")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw them")
    return parser.parse_args()


def main() -> None:
    """Runs the sweeps; progress on standard error, the table on standard output."""
    asked, progress = _arguments(), Console(stderr=True)
    wanted = [case for case in cases() if asked.only in (None, case.sweep)]
    rows: list[Row] = []
    for case in wanted:
        progress.print(f"{len(rows) + 1}/{len(wanted)} {case.sweep} {case.layers} {case.devices}", highlight=False)
        rows.append(measure(case, asked.limit_s, asked.memory_gib))
    Console(width=None if sys.stdout.isatty() else 200).print(table(rows))
    if asked.json:
        write_rows(rows, asked.json)
    if asked.svg:
        asked.svg.parent.mkdir(parents=True, exist_ok=True)
        asked.svg.write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
