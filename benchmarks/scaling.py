"""One measured `plan()` of a generated graph: `python -m benchmarks.scaling SHAPE SIZE DEVICES OBJECTIVE LIMIT_S`.

SHAPE is `chain` (SIZE layers with side branches) or `parallel` (two chains of SIZE layers). Prints one row of JSON, see
`benchmarks.solving`. Run in a process of its own by `benchmarks.children`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.long_graphs import long_chain, parallel_chains, problem_of
from benchmarks.solving import cpu_s, measured, report_values
from planner.errors import PlannerError
from planner.options import Objective, Replication, SearchOptions
from planner.service import plan

SHAPES = {"chain": long_chain, "parallel": parallel_chains}


def row(shape: str, size: int, devices: int, objective: Objective, limit_s: float) -> dict[str, Any]:
    """The row of one case. CPU seconds and peak memory include the making of the problem."""
    started, before = time.monotonic(), cpu_s()
    problem = problem_of(SHAPES[shape](size), devices, training=objective is Objective.ITERATION_TIME)
    options = SearchOptions(objective=objective, replication=Replication.NONE, num_finalists=1, time_limit_s=limit_s)
    try:
        result = plan(problem, options)
    except (PlannerError, MemoryError) as fault:
        return {"status": "error", "error": f"{type(fault).__name__}: {fault}", **measured(started, before)}
    values = report_values(result.report)
    simulated = [c for c in result.report.certificates if c.quantity == "iteration_time_s"]
    if simulated:
        values |= {"iteration_gap": simulated[0].gap, "iteration_proved_by": simulated[0].method}
    stages = len(result.plan.stages) if result.plan else None
    return {"stages": stages, **values, **measured(started, before)}


def main() -> None:
    """Prints the row of the arguments."""
    shape, size, devices, objective, limit_s = sys.argv[1:]
    print(json.dumps(row(shape, int(size), int(devices), Objective(objective), float(limit_s))))


if __name__ == "__main__":
    main()
