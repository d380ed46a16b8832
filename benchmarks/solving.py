"""One measured search. `python -m benchmarks.solving FILE K LIMIT_S` prints one row of JSON; K may be `shipped`.

Run in a process of its own by `benchmarks.children`, so that CPU seconds and peak memory are those of the search.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.instances import load_instance, on_accelerators
from planner.cluster import DeviceKind
from planner.errors import PlannerError
from planner.options import Objective, Replication, SearchOptions
from planner.problem import Problem
from planner.result import SearchReport
from planner.service import plan

SHIPPED = "shipped"
"""Setting (ii): the devices, CPUs and memory limits of the file; a number is setting (i)."""
MILLISECONDS = 1e3
"""Objectives are printed as the published tables do."""


def solve(problem: Problem, limit_s: float) -> SearchReport:
    """The bottleneck of the paper: throughput, blocking transfers, one device per stage, by the planner's portfolio.

    One schedule, as the bottleneck is that of every schedule: nothing is simulated under others.
    """
    options = SearchOptions(
        objective=Objective.THROUGHPUT,
        schedule="1f1b",
        replication=Replication.NONE,
        num_finalists=1,
        time_limit_s=limit_s,
    )
    return plan(problem, options).report


def row(path: Path, k: str, limit_s: float) -> dict[str, Any]:
    """Values of one search: `objective` and `bound` in milliseconds, CPU seconds of the search alone (its children's
    included), peak memory of the whole process."""
    shipped = load_instance(path)
    problem = shipped if k == SHIPPED else on_accelerators(shipped, int(k))
    num_cpus = sum(problem.device_types[d.type].kind is DeviceKind.CPU for d in problem.cluster.devices)
    started, before = time.monotonic(), cpu_s()
    try:
        answer = report_values(solve(problem, limit_s))
    except (PlannerError, MemoryError) as fault:
        answer = {"status": "error", "error": f"{type(fault).__name__}: {fault}"}
    return {
        "accelerators": len(problem.cluster.devices) - num_cpus,
        "cpus": num_cpus,
        "layers": len(problem.index),
        **answer,
        **measured(started, before),
    }


def report_values(report: SearchReport) -> dict[str, Any]:
    """The report's figures under the names of the table."""
    own = next((c for c in report.certificates if c.quantity == "objective_s"), None)
    return {
        "status": report.status.value,
        "objective": None if report.objective_s is None else report.objective_s * MILLISECONDS,
        "bound": None if report.bound_s is None else report.bound_s * MILLISECONDS,
        "gap": report.gap,
        "found_by": report.optimizer if report.objective_s is not None else None,
        "proved_by": own.method if own else None,
    }


def measured(started: float, cpu_before: float) -> dict[str, float]:
    """Seconds since the start, and peak resident memory of this process."""
    return {
        "cpu_s": round(cpu_s() - cpu_before, 3),
        "wall_s": round(time.monotonic() - started, 3),
        "rss_mib": round(_peak_bytes() / 2**20, 1),
    }


def cpu_s() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _peak_bytes() -> int:
    """Largest resident set. `ru_maxrss` may be the parent's, whose pages a new process shares for a moment."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Prints the row of the arguments."""
    path, k, limit_s = sys.argv[1:]
    print(json.dumps(row(Path(path), k, float(limit_s))))


if __name__ == "__main__":
    main()
