"""Whether independent exact methods agree: on random problems, and with every bound and every plan between them.

Run as `python -m benchmarks.agreement [--count 1000] [--seed N] [--json FILE]`. Each problem (`random_problems`) is
solved by `exhaustive`, which prices every plan, by `ideal_dp`, and by `milp` with CBC and with HiGHS. Checked are:

- all four find nothing, or the same value to 1e-6 relative; each claims to be exact;
- no bound of `planner.bounds`, and none that an optimizer proves, is above the optimum;
- no plan of any optimizer is below it, and `verify` finds nothing wrong with any plan;
- searching again with the same seed gives the same plans.

Exit status 1, with the seeds, where a check fails. A problem of seed N is repeated by `--seed N --count 1`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import machine
from benchmarks.random_problems import RandomProblem, random_problem
from benchmarks.solving import cpu_s
from planner.bounds import BOUNDS, BoundQuery
from planner.costs.model import CostModel
from planner.optimizers.base import OPTIMIZERS, Clock, Optimizer, Outcome, SearchContext, refusal
from planner.optimizers.exhaustive import count_plans
from planner.optimizers.milp import Milp
from planner.verify import verify

MOST_PLANS = 2_000
"""Plans that the oracle prices for one problem."""
RELATIVE = 1e-6
TINY_S = 1e-9
"""Values are also equal within this: optima may be 0."""
UPPER = (1.0, 1.1, 1.6)
"""Bounds are told of a plan that is so many times as bad as the best, in turn."""
LIMIT_S = 600.0
Row = dict[str, Any]


def exact_optimizers() -> dict[str, Optimizer]:
    """The four witnesses by name, the oracle first."""
    return {
        "exhaustive": OPTIMIZERS["exhaustive"],
        "ideal_dp": OPTIMIZERS["ideal_dp"],
        "milp (CBC)": Milp("cbc"),
        "milp (HiGHS)": Milp("highs"),
    }


def row(seed: int, *, most_plans: int = MOST_PLANS, repeat: bool = True) -> Row:
    """One problem: its features, its optimum in seconds (None: infeasible), and what is wrong (nothing, we hope).

    It is drawn with at most `most_plans` plans where edges can bring that about; `repeat` searches it twice.
    """
    started = cpu_s()
    made = random_problem(seed, few=lambda made: count_plans(context_of(made)) <= most_plans)
    outcomes = {name: optimizer.search(context_of(made)) for name, optimizer in exact_optimizers().items()}
    optimum_s = _value(outcomes["exhaustive"])
    others = _others(made)
    wrong = [
        *_disagreements(outcomes, optimum_s),
        *_below(made, outcomes | others, optimum_s),
        *_bounds_above(made, outcomes | others, optimum_s, UPPER[seed % len(UPPER)]),
        *(_changed(made, outcomes) if repeat else ()),
    ]
    return {
        "seed": seed,
        "layers": len(made.problem.index),
        "plans": count_plans(context_of(made)),
        "features": list(made.features),
        "optimum_s": optimum_s if math.isfinite(optimum_s) else None,
        "wrong": wrong,
        "cpu_s": round(cpu_s() - started, 3),
    }


def context_of(made: RandomProblem) -> SearchContext:
    """A search from the start."""
    return SearchContext(
        problem=made.problem, options=made.options, costs=CostModel(made.problem), clock=Clock(LIMIT_S)
    )


def summary(rows: Iterable[Row]) -> Row:
    """How many problems there were of each kind, and the seeds of those where something is wrong."""
    done = list(rows)
    features = Counter(feature for row in done for feature in row["features"])
    return {
        "problems": len(done),
        "infeasible": sum(row["optimum_s"] is None for row in done),
        "disagreements": [row["seed"] for row in done if row["wrong"]],
        "plans priced": sum(row["plans"] for row in done),
        "most layers": max((row["layers"] for row in done), default=0),
        **dict(sorted(features.items())),
        "CPU seconds": round(sum(row["cpu_s"] for row in done)),
    }


def _others(made: RandomProblem) -> dict[str, Outcome]:
    """Every other optimizer that can search the problem."""
    names = [name for name in OPTIMIZERS.names() if name not in ("exhaustive", "ideal_dp", "milp")]
    able = [name for name in names if not refusal(OPTIMIZERS[name], context_of(made))]
    return {name: OPTIMIZERS[name].search(_short(context_of(made))) for name in able}


def _short(context: SearchContext) -> SearchContext:
    """Heuristics that go on until the limit get little time."""
    return replace(context, clock=Clock(0.1))


def _value(outcome: Outcome) -> float:
    return outcome.candidates[0].objective_s if outcome.candidates else math.inf


def _slack(value: float) -> float:
    return RELATIVE * abs(value) + TINY_S if math.isfinite(value) else 0.0


def _disagreements(outcomes: dict[str, Outcome], optimum_s: float) -> Iterator[str]:
    for name, outcome in outcomes.items():
        value = _value(outcome)
        if value != optimum_s and not abs(value - optimum_s) <= _slack(optimum_s):
            yield f"{name} finds {value!r}, exhaustive {optimum_s!r}"
        if not outcome.exact:
            yield f"{name} does not claim to be exact: {outcome.notes}"


def _below(made: RandomProblem, outcomes: dict[str, Outcome], optimum_s: float) -> Iterator[str]:
    """Plans that should not be there."""
    costs = CostModel(made.problem)
    for name, outcome in outcomes.items():
        for candidate in outcome.candidates:
            if candidate.objective_s < optimum_s - _slack(optimum_s):
                yield f"{name} has a plan of {candidate.objective_s!r} below the optimum {optimum_s!r}"
            yield from (f"{name}: {fault.message}" for fault in verify(candidate.plan, made.problem, costs))


def _bounds_above(made: RandomProblem, outcomes: dict[str, Outcome], optimum_s: float, factor: float) -> Iterator[str]:
    found = {name: outcome.bound_s for name, outcome in outcomes.items()}
    if math.isfinite(optimum_s):
        query = _query(made, optimum_s * factor)
        found |= {f"bound {name}": BOUNDS[name].objective_s(query) for name in BOUNDS.names()}
    for name, bound_s in found.items():
        if bound_s is not None and bound_s > optimum_s + _slack(optimum_s):
            yield f"{name} proves {bound_s!r}, the optimum is {optimum_s!r}"


def _query(made: RandomProblem, upper_s: float) -> BoundQuery:
    context = context_of(made)
    return BoundQuery(
        problem=made.problem,
        costs=context.costs,
        objective=made.options.objective,
        batches=tuple(context.batches()),
        replication=made.options.replication,
        replica_mode=made.options.replica_mode,
        search_model=made.options.search_model,
        upper_s=upper_s,
        limit_s=LIMIT_S,
        seed=made.options.seed,
    )


def _changed(made: RandomProblem, outcomes: dict[str, Outcome]) -> Iterator[str]:
    """Searches that end otherwise the second time."""
    for name, optimizer in exact_optimizers().items():
        if optimizer.search(context_of(made)).candidates != outcomes[name].candidates:
            yield f"{name} finds other plans the second time"


def write(rows: list[Row], target: Path) -> None:
    """Summary and rows as JSON, and beside them on what they ran (`NAME.machine.json`)."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    target.write_text(f'{{"summary": {json.dumps(summary(rows))},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
    target.with_suffix(".machine.json").write_text(json.dumps(machine(), indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Runs what the arguments ask for; progress on standard error, the summary on standard output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of problems")
    parser.add_argument("--seed", type=int, default=0, help="the first of their seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write summary and rows")
    asked = parser.parse_args()
    progress, done, started = Console(stderr=True), list[Row](), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):  # what is done by then is shown and written
        for seed in range(asked.seed, asked.seed + asked.count):
            done.append(row(seed))
            for fault in done[-1]["wrong"]:
                progress.print(f"seed {seed}: {fault}", highlight=False)
            if not len(done) % 50:
                progress.print(f"{len(done)}/{asked.count} after {time.monotonic() - started:.0f} s", highlight=False)
    Console().print_json(data=summary(done))
    if asked.json:
        write(done, asked.json)
    sys.exit(1 if any(row["wrong"] for row in done) else 0)


if __name__ == "__main__":
    main()
