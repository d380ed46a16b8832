"""One measured `plan()`: `python -m benchmarks.scaling SHAPE SIZE DEVICES OBJECTIVE LIMIT_S STAGES`.

SHAPE is `chain` (SIZE layers with side branches), `parallel` (two chains of SIZE layers) or a recorded model (SIZE is
then its tensor degree, on nodes of eight H100); STAGES a number or `free`. Prints one row of JSON, see
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
from planner.options import Objective, SearchOptions
from planner.problem import Problem
from planner.service import plan
from planner.workload import Training
from profiles.clusters import parse_cluster
from profiles.model import ModelRecord
from profiles.sources import build_problem, load_source

SHAPES = {"chain": long_chain, "parallel": parallel_chains}
NODE = 8
GLOBAL_BATCH = 2048
FREE = "free"


def row(shape: str, size: int, devices: int, objective: Objective, limit_s: float, stages: str) -> dict[str, Any]:
    """The row of one case. CPU seconds and peak memory include the making of the problem."""
    started, before = time.monotonic(), cpu_s()
    training = objective is Objective.ITERATION_TIME
    if shape in SHAPES:
        problem = problem_of(SHAPES[shape](size), devices, training=training)
    else:
        problem = recorded(shape, size, devices)
    options = SearchOptions(
        objective=objective,
        num_stages=None if stages == FREE else int(stages),
        num_finalists=1,
        time_limit_s=limit_s,
    )
    try:
        result = plan(problem, options)
    except (PlannerError, MemoryError) as fault:
        return {"status": "error", "error": f"{type(fault).__name__}: {fault}", **measured(started, before)}
    values = report_values(result.report)
    simulated = [c for c in result.report.certificates if c.quantity == "iteration_time_s"]
    if simulated:
        values |= {"iteration_gap": simulated[0].gap, "iteration_proved_by": simulated[0].method}
    found = len(result.plan.stages) if result.plan else None
    return {"stages": found, **values, **measured(started, before)}


def recorded(model: str, tensor: int, devices: int) -> Problem:
    """Mixed-precision training of a recorded model on nodes of eight H100, optimizer state sharded (ZeRO 1)."""
    record = load_source(model)
    assert isinstance(record, ModelRecord)
    workload = Training(
        global_batch_size=GLOBAL_BATCH,
        sequence_length=record.sequence_length,
        tensor=tensor,
        zero=1,
        weight_bytes_per_parameter=2,
        gradient_bytes_per_parameter=4,
        optimizer_bytes_per_parameter=12,
    )
    return build_problem(record, parse_cluster(f"{devices // NODE}x{NODE}xH100-80G-SXM"), workload)


def main() -> None:
    """Prints the row of the arguments."""
    shape, size, devices, objective, limit_s, stages = sys.argv[1:]
    print(json.dumps(row(shape, int(size), int(devices), Objective(objective), float(limit_s), stages)))


if __name__ == "__main__":
    main()
