"""How good the plans are, and how well that is proven: every instance at every k.

Run as `python -m benchmarks.proof [--instances DIR] [--k 2,4,8] [--shipped] [--limit-s 60] [--json FILE]`. Setting (i)
puts each model on k accelerators without CPU and without memory limit; setting (ii), `shipped`, on the devices, CPUs
and memory of its file. One process per row; objective and bound are the bottleneck in milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.children import run_child
from benchmarks.instances import default_folders, find_instances
from benchmarks.machine import machine
from benchmarks.solving import SHIPPED
from planner.errors import InputError

ALL_K = "2,4,8,16,32,64"
MEMORY_GIB = 8.0
Row = dict[str, Any]

COLUMNS = ("instance", "k", "objective", "bound", "gap", "found_by", "proved_by", "cpu_s", "rss_mib")


def rows(instances: dict[str, Path], ks: Iterable[str], limit_s: float, memory_gib: float) -> Iterator[Row]:
    """One row per instance and k, as they end."""
    wanted = list(ks)
    for name, path in instances.items():
        for k in wanted:
            values = run_child("benchmarks.solving", [str(path), k, str(limit_s)], limit_s, memory_gib)
            setting = SHIPPED if k == SHIPPED else "accelerators"
            count = values.get("accelerators") if k == SHIPPED else int(k)
            yield {"instance": name, "k": count, "setting": setting, **dict.fromkeys(COLUMNS[2:]), **values}


def summary(rows: Iterable[Row]) -> list[Row]:
    """Per k (shipped is one of them): rows, how many are proven, geometric mean of bound/objective, most CPU seconds.

    Rows without a plan or bound are counted, and left out of the mean.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(SHIPPED if row["setting"] == SHIPPED else str(row["k"]), []).append(row)
    return [{"k": k, **_summary(members)} for k, members in groups.items()]


def _summary(members: list[Row]) -> Row:
    ratios = [ratio for row in members if (ratio := _ratio(row)) is not None]
    return {
        "rows": len(members),
        "proven": sum(row.get("status") == "optimal" for row in members),
        "without_bound": len(members) - len(ratios),
        "bound_over_objective": math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "max_cpu_s": max((row["cpu_s"] for row in members if row["cpu_s"] is not None), default=None),
    }


def _ratio(row: Row) -> float | None:
    if not row["objective"] or not row["bound"]:
        return None
    return float(row["bound"] / row["objective"])


def row_table(rows: Iterable[Row]) -> Table:
    """What was asked and found, one line per row."""
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        k = SHIPPED if row["setting"] == SHIPPED else str(row["k"])
        found = row.get("error") or row["found_by"] or row.get("status")
        table.add_row(
            row["instance"], k, _number(row["objective"], 6), _number(row["bound"], 6), _number(row["gap"], 6),
            found, row["proved_by"], _number(row["cpu_s"], 2), _number(row["rss_mib"], 0),
        )  # fmt: skip
    return table


def summary_table(rows: Iterable[Row]) -> Table:
    """One line per k."""
    table = Table("k", "rows", "proven", "without bound", "bound / objective", "most CPU s", box=None, pad_edge=False)
    for line in summary(rows):
        table.add_row(
            line["k"], str(line["rows"]), str(line["proven"]), str(line["without_bound"]),
            _number(line["bound_over_objective"], 4), _number(line["max_cpu_s"], 2),
        )  # fmt: skip
    return table


def write_rows(rows: list[Row], target: Path) -> None:
    """The rows as a JSON list, and beside them on what they ran (`NAME.machine.json`)."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    target.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    beside = target.with_suffix(".machine.json")
    beside.write_text(json.dumps(machine(), indent=1) + "\n", encoding="utf-8")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description=__doc__)
    parser.add_argument("--instances", type=Path, action="append", metavar="DIR", help="folder of instances")
    parser.add_argument("--only", default="", metavar="TEXT", help="instances whose name contains this")
    parser.add_argument("--k", default=ALL_K, help="numbers of accelerators of setting (i), or empty")
    parser.add_argument("--shipped", action="store_true", help="setting (ii) alone")
    parser.add_argument("--limit-s", type=float, default=60.0, help="time limit of each search")
    parser.add_argument("--memory-gib", type=float, default=MEMORY_GIB, help="address space of each search")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows")
    return parser.parse_args()


def main() -> None:
    """Runs what the arguments ask for; progress on standard error, tables on standard output, also after Ctrl-C."""
    asked = _arguments()
    ks = [SHIPPED] if asked.shipped else [*filter(None, asked.k.split(",")), SHIPPED]
    try:
        instances = find_instances(asked.instances or default_folders())
    except InputError as fault:
        sys.exit(str(fault))
    instances = {name: path for name, path in instances.items() if asked.only in name}
    progress, done = Console(stderr=True), list[Row]()
    with contextlib.suppress(KeyboardInterrupt):  # what is done by then is shown and written
        for row in rows(instances, ks, asked.limit_s, asked.memory_gib):
            done.append(row)
            progress.print(f"{len(done)}/{len(instances) * len(ks)} {row['instance']} {row['k']}", highlight=False)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(row_table(done), summary_table(done), sep="\n\n")
    if asked.json:
        write_rows(done, asked.json)


if __name__ == "__main__":
    main()
