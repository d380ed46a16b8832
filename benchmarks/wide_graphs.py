"""Wide layered graphs, too wide for exact methods: how far apart are plans and bounds?

Run as `python -m benchmarks.wide_graphs [--json FILE] [--limit-s 60] [--seeds 5] [--sizes 200x10,500x20] [--k 4,16,64]
[--rho 0.05,0.5,2] [--kinds rand,branch]`. Per row: a plan by order search within a third of the limit, then the bounds
of `planner.bounds.bottleneck` within the rest. Limits are CPU seconds of this process (a busy machine changes nothing);
solvers in processes of their own are stopped by the same number of seconds of wall time. One unit is the mean work.
Rows that FILE holds already are kept, so that a run can be taken up again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from planner.bounds._budget import Budget
from planner.bounds.bottleneck import best_bound
from planner.ideals import Groups, set_of
from planner.partition.exact import heuristic
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass

SPREAD = 0.6
"""Sigma of the logarithm of works and tensor costs."""
SKIP_SHARE = 0.15
"""Edges from one of the three rows before the last."""
CROSS_SHARE = 0.10
"""Layers of parallel chains that also read another chain."""
PLAN_SHARE = 1 / 3
SIMPLE = ("work", "pigeonhole")
SETTING = ("size", "kind", "rho", "k", "seed")
Row = dict[str, Any]


def wide_graph(num_layers: int, width: int, kind: str, rho: float, seed: int, num_stages: int) -> BottleneckInstance:
    """A seeded graph of rows of `width` layers, on equal devices without memory limit.

    `rand`: 1 to 3 inputs from the row before, 15 % of them from older rows. `branch`: parallel chains, 10 % of the
    layers read another chain as well. Work is lognormal, a layer's tensor costs `rho` times a lognormal.
    """
    draw = random.Random(f"{num_layers} {width} {kind} {rho} {seed}")
    readers = _branches(draw, num_layers, width) if kind == "branch" else _layered(draw, num_layers, width)
    work = [draw.lognormvariate(0.0, SPREAD) for _ in range(num_layers)]
    cuts = [
        Cut(groups=set_of((layer, *found)), cost_s=rho * draw.lognormvariate(0.0, SPREAD))
        for layer, found in enumerate(readers)
        if found
    ]
    devices = DeviceClass(count=num_stages, work_s=work, size_bytes=[0] * num_layers, limit_bytes=0)
    return BottleneckInstance(groups=_groups(readers), cuts=tuple(cuts), classes=(devices,))


def rows(settings: Iterable[tuple[str, str, float, int, int]], limit_s: float) -> Iterator[Row]:
    """One row per (size, kind, rho, k, seed)."""
    for size, kind, rho, k, seed in settings:
        layers, width = map(int, size.split("x"))
        yield {"size": size, "kind": kind, "rho": rho, "k": k, "seed": seed} | _solved(
            wide_graph(layers, width, kind, rho, seed, k), limit_s, seed
        )


def _solved(instance: BottleneckInstance, limit_s: float, seed: int) -> Row:
    started = time.process_time()
    plan_clock = Budget(limit_s * PLAN_SHARE, clock=time.process_time)
    plan = heuristic(instance, seed=seed, max_iterations=10**6, expired=plan_clock.expired)
    assert plan is not None
    planned = time.process_time()
    found = best_bound(instance, plan.value_s, limit_s - (planned - started), seed, clock=time.process_time)
    simple = max(trial.value_s for trial in found.trials if trial.name in SIMPLE)
    return {
        "objective": plan.value_s,
        "bound": found.value_s,
        "simple": simple,
        "proved_by": found.name,
        "plan_cpu_s": planned - started,
        "cpu_s": time.process_time() - started,
        "bounds": {trial.name: {"value": trial.value_s, "cpu_s": trial.cpu_s} for trial in found.trials},
    }


def summary(found: Iterable[Row]) -> list[Row]:
    """Geometric means of bound/objective and of the simple bound/objective, per rho and k."""
    groups: dict[tuple[float, int], list[Row]] = {}
    for row in found:
        groups.setdefault((row["rho"], row["k"]), []).append(row)
    return [
        {
            "rho": rho,
            "k": k,
            "rows": len(members),
            "simple": _mean(row["simple"] / row["objective"] for row in members),
            "bound": _mean(row["bound"] / row["objective"] for row in members),
            "proved_by": ", ".join(sorted({row["proved_by"] for row in members})),
        }
        for (rho, k), members in sorted(groups.items())
    ]


def _mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(math.fsum(logs) / len(logs))


def _layered(draw: random.Random, num_layers: int, width: int) -> list[list[int]]:
    """Per layer its readers."""
    readers: list[set[int]] = [set() for _ in range(num_layers)]
    for layer in range(width, num_layers):
        row = layer // width
        for _ in range(draw.randint(1, 3)):
            before = row - 1
            if row > 1 and draw.random() < SKIP_SHARE:
                before = draw.randrange(max(0, row - 4), row - 1)
            readers[before * width + draw.randrange(width)].add(layer)
    return [sorted(found) for found in readers]


def _branches(draw: random.Random, num_layers: int, width: int) -> list[list[int]]:
    """Per layer its readers."""
    readers: list[set[int]] = [set() for _ in range(num_layers)]
    for layer in range(width, num_layers):
        readers[layer - width].add(layer)
        if draw.random() < CROSS_SHARE:
            readers[(layer // width - 1) * width + draw.randrange(width)].add(layer)
    return [sorted(found) for found in readers]


def _groups(readers: list[list[int]]) -> Groups:
    before = [0] * len(readers)
    for layer, found in enumerate(readers):
        for other in found:
            before[other] |= 1 << layer
    return Groups(
        layers=tuple((layer,) for layer in range(len(readers))),
        of_layer=tuple(range(len(readers))),
        before=tuple(before),
        after=tuple(set_of(found) for found in readers),
    )


def _table(found: list[Row]) -> Table:
    table = Table(*(found[0] if found else ("nothing",)))
    for row in found:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def _read(path: Path | None) -> list[Row]:
    return json.loads(path.read_text())["rows"] if path is not None and path.exists() else []


def _write(path: Path, done: list[Row]) -> None:
    path.write_text(json.dumps({"machine": machine(), "summary": summary(done), "rows": done}, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", default="200x10,500x20,1000x30")
    parser.add_argument("--kinds", default="rand,branch")
    parser.add_argument("--rho", default="0.05,0.5,2")
    parser.add_argument("--k", default="2,4,8,16,32,64")
    given = parser.parse_args(arguments)
    settings = product(
        given.sizes.split(","),
        given.kinds.split(","),
        map(float, given.rho.split(",")),
        map(int, given.k.split(",")),
        range(given.seeds),
    )
    console, done = Console(), _read(given.json)
    known = {tuple(row[name] for name in SETTING) for row in done}
    for row in rows((setting for setting in settings if setting not in known), given.limit_s):
        done.append(row)
        ratio = row["bound"] / row["objective"]
        label = " ".join(f"{row[name]}" for name in SETTING)
        console.print(f"{label}: {ratio:.4f} ({row['proved_by']}), simple {row['simple'] / row['objective']:.4f}")
        if given.json:
            _write(given.json, done)
    console.print(_table(summary(done)))


if __name__ == "__main__":
    main()
