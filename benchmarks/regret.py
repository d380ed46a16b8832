"""How far from the best simulated plan is what `plan` answers, and how far is its bound?

Run as `python -m benchmarks.regret [--json FILE] [--count 200] [--seed 0]`. Seeded tiny training problems (chains of 2
to 4 layers on 2 to 3 equal devices, memory that sometimes binds); every plan with one stage per device, at every batch,
replication degree and recomputation, is simulated under every schedule that `auto` tries. Regret: simulated
time of the answer over the smallest one. Gap: the smallest one over the bound of the certificate on everything.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from planner.cluster import Cluster, Device, DeviceType, Link
from planner.costs.model import CostModel
from planner.graph import Edge, Layer, LayerGraph
from planner.optimizers.base import OPTIMIZERS, Clock, SearchContext
from planner.options import Decision, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.service import plan
from planner.simulation.estimate import simulate_plan
from planner.verify import verify
from planner.workload import Training

Row = dict[str, Any]
OPTIONS = SearchOptions(searched=(Decision.RECOMPUTATION,), num_finalists=30)


def tiny_problem(seed: int) -> Problem:
    """One seeded problem."""
    draw = random.Random(seed)
    names = [f"layer{i}" for i in range(draw.randint(2, 4))]
    costs = {name: _cost(draw) for name in names}
    layers = tuple(Layer(id=name, parameter_bytes=draw.randrange(0, 400, 4)) for name in names)
    edges = tuple(Edge(source=a, target=b, bytes_per_sample=draw.randrange(4, 100, 4)) for a, b in pairwise(names))
    return Problem(
        graph=LayerGraph(layers=layers, edges=edges),
        profiles=(Profile(device_type="gpu", tables=(CostTable(microbatch_size=1, layers=costs),)),),
        cluster=_cluster(draw),
        workload=Training(global_batch_size=draw.choice([2, 4, 6, 8])),
    )


def _cost(draw: random.Random) -> LayerCost:
    forward = draw.uniform(1.0, 4.0)
    gradient, weight = forward * draw.uniform(0.8, 1.2), forward * draw.uniform(0.6, 1.2)
    return LayerCost(
        forward_s=forward,
        backward_s=gradient + weight,
        backward_input_s=gradient,
        backward_weight_s=weight,
        activation_bytes=draw.randrange(0, 200, 4),
    )


def _cluster(draw: random.Random) -> Cluster:
    names = [f"d{i}" for i in range(draw.randint(2, 3))]
    width = draw.choice([20.0, 200.0, 1e6])
    return Cluster(
        device_types=(DeviceType(name="gpu", memory_bytes=draw.choice([2**20, 4000, 2500, 1600])),),
        devices=tuple(Device(id=name, type="gpu") for name in names),
        links=tuple(Link(a=name, b="switch", bandwidth_bytes_per_s=width, latency_s=0.0) for name in names),
    )


def measured(problem: Problem) -> Row | None:
    """Regret and gap on one problem; None where nothing fits."""
    result = plan(problem, OPTIONS)
    everything = list(_simulated(problem))
    if not everything or result.estimate is None:
        return None if not everything else {"regret": float("inf")}
    best, schedule = min(everything)
    found = result.estimate.iteration_time_s
    bound = next(c for c in result.report.certificates if c.quantity == "iteration_time_s").bound_s
    return {
        "plans": len(everything),
        "best_s": best,
        "best_schedule": schedule,
        "found_s": found,
        "found_schedule": result.plan.schedule if result.plan else "",
        "bound_s": bound,
        "regret": found / best - 1,
        "gap": min(best, found) / bound - 1,
        "claimed_gap": found / bound - 1,
    }


def _simulated(problem: Problem) -> Iterator[tuple[float, str]]:
    """(seconds, schedule) of every plan with one stage per device that fits."""
    costs = CostModel(problem)
    options = replace(OPTIONS, num_finalists=1000, schedule="auto")
    context = SearchContext(problem=problem, options=options, costs=costs, clock=Clock(600.0))
    every = replace(options, num_finalists=10**9)
    candidates = OPTIMIZERS["exhaustive"].search(replace(context, options=every)).candidates
    shapes: dict[str, Plan] = {repr((c.plan.stages, c.plan.microbatch_size)): c.plan for c in candidates}
    for shape in shapes.values():
        for schedule in context.schedules:
            trial = replace(shape, schedule=schedule)
            if not verify(trial, problem, costs):
                yield simulate_plan(problem, trial, costs)[1].iteration_time_s, schedule


def summary(rows: list[Row]) -> Row:
    """Mean and largest of each figure, and how often the answer is the best."""
    return {
        "problems": len(rows),
        "plans": sum(row["plans"] for row in rows),
        "best_found": sum(row["regret"] <= 1e-9 for row in rows),
        **{f"mean_{name}": fmean(row[name] for row in rows) for name in ("regret", "gap", "claimed_gap")},
        **{f"largest_{name}": max(row[name] for row in rows) for name in ("regret", "gap", "claimed_gap")},
    }


def main(arguments: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    seed = given.seed
    while len(rows) < given.count:
        row = measured(tiny_problem(seed))
        rows += [{"seed": seed, **row}] if row else []
        seed += 1
    total = summary(rows)
    table = Table(*total)
    table.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in total.values()))
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "summary": total, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
