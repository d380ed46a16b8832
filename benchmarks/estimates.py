"""How many layouts a minute `planner.service.estimate` prices and simulates, nothing remembered between two of them.

Run as `python -m benchmarks.estimates [--layouts 200] [--json FILE]`. Llama-3-70B (80 blocks) on P nodes of eight H100,
tensor degree 8, P stages times M microbatches; every layout has other cuts (seeded), and every second one recomputes.
`engine_per_minute` is the event engine with its timeline on some of the same layouts, `fallback` counts layouts for
which the recurrence does not hold, so that `estimate` asks the engine. CPU seconds of one core.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.proof import write_rows
from benchmarks.scaling import NODE, recorded
from planner.costs.model import CostModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.schedules import SCHEDULES, Placement, rank_at
from planner.service import estimate, simulate
from planner.simulation.makespan import recurrent_makespan_s
from planner.simulation.program import running_workers
from planner.workload import Recomputation

MODEL = "llama-3-70b"
SIZES = ((8, 16), (8, 64), (16, 32), (16, 64))
SCHEDULES_TIMED = (("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h1", 1), ("zb_v", 2))
"""Schedule, virtual stages per rank."""
TIMED_BY_ENGINE = 5
SEED = 0
Row = dict[str, Any]
COLUMNS = ("schedule", "ranks", "microbatches", "layouts", "per_minute", "cpu_ms", "engine_per_minute", "fallback")


def problem_of(ranks: int, microbatches: int) -> Problem:
    """One sample per microbatch."""
    problem = recorded(MODEL, NODE, NODE * ranks)
    return problem.with_workload(replace(problem.workload, global_batch_size=microbatches, microbatch_size=1))


def layouts(problem: Problem, schedule: str, ranks: int, virtual: int, number: int) -> Iterator[Plan]:
    """Plans with random cuts, the last two layers (head and loss) together; rank r on node r."""
    chance, names = random.Random(SEED), [layer.id for layer in problem.index.layers]
    nodes = [tuple(d.id for d in problem.cluster.devices[NODE * r : NODE * (r + 1)]) for r in range(ranks)]
    stages = ranks * virtual
    for n in range(number):
        cuts = [0, *sorted(chance.sample(range(1, len(names) - 1), stages - 1)), len(names)]
        yield Plan(
            stages=tuple(
                Stage(
                    layers=tuple(names[cuts[s] : cuts[s + 1]]),
                    replicas=(nodes[rank_at(_placement(schedule), s, ranks)],),
                    tensor=NODE,
                    zero=1,
                    recomputation=(Recomputation.NONE, Recomputation.FULL)[n % 2],
                )
                for s in range(stages)
            ),
            schedule=schedule,
            microbatch_size=1,
            num_microbatches=problem.workload.global_batch_size,
        )


def _placement(schedule: str) -> Placement:
    return SCHEDULES[schedule].placement


def measure(schedule: str, virtual: int, ranks: int, microbatches: int, number: int) -> Row:
    """The row of one size."""
    problem = problem_of(ranks, microbatches)
    plans = list(layouts(problem, schedule, ranks, virtual, number))
    estimate(problem, plans[0])  # imports, routes of the network
    spent = _cpu_s(estimate, problem, plans)
    engine = _cpu_s(simulate, problem, plans[:TIMED_BY_ENGINE])
    return {
        "schedule": schedule,
        "ranks": ranks,
        "microbatches": microbatches,
        "layouts": number,
        "per_minute": round(60 / spent),
        "cpu_ms": round(1000 * spent, 2),
        "engine_per_minute": round(60 / engine),
        "fallback": sum(not _recurs(problem, plan) for plan in plans),
    }


def _cpu_s(run: Callable[[Problem, Plan], object], problem: Problem, plans: list[Plan]) -> float:
    """CPU seconds per plan."""
    before = time.process_time()
    for plan in plans:
        run(problem, plan)
    return (time.process_time() - before) / len(plans)


def _recurs(problem: Problem, plan: Plan) -> bool:
    priced = CostModel(problem).price(plan)
    return recurrent_makespan_s(problem, priced, running_workers(priced)) is not None


def table(rows: Iterable[Row]) -> Table:
    """One line per row."""
    made = Table(*(name.replace("_", " ") for name in COLUMNS), box=None, pad_edge=False)
    for row in rows:
        made.add_row(*(str(row[name]) for name in COLUMNS))
    return made


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description=__doc__)
    parser.add_argument("--layouts", type=int, default=200, help="layouts per row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows")
    return parser.parse_args()


def main() -> None:
    """Times all sizes; progress on standard error, the table on standard output."""
    asked, progress = _arguments(), Console(stderr=True)
    rows: list[Row] = []
    for schedule, virtual in SCHEDULES_TIMED:
        for ranks, microbatches in SIZES:
            progress.print(f"{schedule} {ranks} x {microbatches}", highlight=False)
            rows.append(measure(schedule, virtual, ranks, microbatches, asked.layouts))
    Console(width=None if sys.stdout.isatty() else 160).print(table(rows))
    if asked.json:
        write_rows(rows, asked.json)


if __name__ == "__main__":
    main()
