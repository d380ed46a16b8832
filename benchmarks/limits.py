"""Do searches end in time? Wall seconds beyond the limit, and whether there is a plan, for every optimizer.

Run as `python -m benchmarks.limits [--limits 2,6] [--json FILE] [--only NAMES]`. Big problems, on which hardly any
optimizer is done within the limit: 20,000 layers for throughput and training, 1,024 layers on 256 devices, a random
layered graph of 900 layers, Llama 3.1 405B on 16,384 devices. Optimizers that refuse a problem are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.long_graphs import long_chain, problem_of
from benchmarks.proof import write_rows
from benchmarks.scaling import recorded
from planner.errors import InputError
from planner.optimizers.base import OPTIMIZERS
from planner.options import Objective, SearchOptions
from planner.problem import Problem
from planner.service import plan

Row = dict[str, Any]
AUTO = "auto"
WIDTH = 30


def wide(num_layers: int) -> tuple[int, list[tuple[int, int]]]:
    """Rows of `WIDTH` layers, each layer reading 1 to 3 of the row before."""
    draw = random.Random(0)
    arcs = {
        (layer // WIDTH * WIDTH - WIDTH + draw.randrange(WIDTH), layer)
        for layer in range(WIDTH, num_layers)
        for _ in range(draw.randint(1, 3))
    }
    return num_layers, sorted(arcs)


PROBLEMS: dict[str, tuple[Callable[[], Problem], Objective]] = {
    "chain 20,000 x 64, throughput": (lambda: problem_of(long_chain(20_000), 64), Objective.THROUGHPUT),
    "chain 20,000 x 64, training": (
        lambda: problem_of(long_chain(20_000), 64, training=True),
        Objective.ITERATION_TIME,
    ),
    "chain 1,024 x 256, training": (lambda: problem_of(long_chain(1024), 256, training=True), Objective.ITERATION_TIME),
    "wide 900 x 16, throughput": (lambda: problem_of(wide(900), 16), Objective.THROUGHPUT),
    "wide 900 x 16, training": (lambda: problem_of(wide(900), 16, training=True), Objective.ITERATION_TIME),
    "405B x 16,384, training": (lambda: recorded("llama-3.1-405b", 8, 16_384), Objective.ITERATION_TIME),
}


def rows(limits: list[float], only: list[str]) -> Iterator[Row]:
    """One row per problem, optimizer and limit."""
    for name, (make, objective) in PROBLEMS.items():
        if only and not any(part in name for part in only):
            continue
        problem = make()
        for optimizer in (AUTO, *OPTIMIZERS.names()):
            for limit_s in limits:
                row = _row(problem, objective, optimizer, limit_s)
                if row is None:
                    break
                yield {"problem": name, "optimizer": optimizer, "limit_s": limit_s, **row}


def _row(problem: Problem, objective: Objective, optimizer: str, limit_s: float) -> Row | None:
    """How long the search took and what it had; None where the optimizer refuses the problem."""
    started, cpu = time.monotonic(), time.process_time()
    options = SearchOptions(objective=objective, optimizer=optimizer, time_limit_s=limit_s)
    try:
        result = plan(problem, options)
    except InputError:
        return None
    return {
        "over_s": time.monotonic() - started - limit_s,
        "cpu_s": time.process_time() - cpu,
        "status": result.report.status.value,
        "plan": result.plan is not None,
        "bound": result.report.bound_s is not None,
    }


def main(arguments: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limits", default="2,6")
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    done: list[Row] = []
    for row in rows([float(limit) for limit in given.limits.split(",")], list(filter(None, given.only.split("/")))):
        done.append(row)
        print(json.dumps(row), flush=True)
        if given.json:
            write_rows(done, given.json)
    table = Table("problem", "optimizer", "limit", "over", "cpu s", "plan", "bound")
    for row in done:
        values = (row[name] for name in ("problem", "optimizer", "limit_s", "over_s", "cpu_s", "plan", "bound"))
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in values))
    Console().print(table)


if __name__ == "__main__":
    main()
