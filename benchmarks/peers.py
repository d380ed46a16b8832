"""Our exact searches beside the published values of PipeDream's and Piper's own programs, in their own models.

Run as `python -m benchmarks.peers [--json FILE]`. Rows are those of `tests/instances/published` (with their source);
seconds are per minibatch (PipeDream) or per sample (Piper). `verdict` compares to the digits that theirs has.
`their plan` is the price of the published plan in our reading of the model: where it equals ours and the plans differ,
both are optimal. CPU seconds cover reading the ideals, filling the tables and tracing the plan.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.proof import write_rows
from planner.costs.stage_costs.hierarchy import Level
from planner.costs.stage_costs.pipedream import PipeDreamCost
from planner.costs.stage_costs.pipedream_plan import Placed, placed_period_s
from planner.ideals import enumerate_ideals
from planner.optimizers._levels import Levels
from planner.optimizers.hierarchical_dp import MAX_IDEALS, placed_stages
from planner.optimizers.piper_dp import piper_dp
from profiles.paper_models import pipedream_cost, piper_cost

INSTANCES = Path(__file__).resolve().parent.parent / "tests" / "instances"
PIPER_BANDWIDTH = 25.0 * 2**30
"""Bytes per second behind the published values; the file says 25e9."""
Row = dict[str, Any]
COLUMNS = (
    "peer",
    "instance",
    "k",
    "setting",
    "theirs",
    "objective",
    "verdict",
    "their_plan_s",
    "same_plan",
    "plan",
    "cpu_s",
)


def published(name: str) -> list[Row]:
    """The published rows of one peer, each with the format of its seconds."""
    file = json.loads((INSTANCES / "published" / f"{name}.json").read_text(encoding="utf-8"))
    digits = f".{file['significant_digits']}g" if "significant_digits" in file else f".{file['decimal_places']}f"
    return [{**row, "digits": digits} for row in file["rows"]]


def verdict(wanted: Row, seconds: float | None) -> str:
    """Equal to the digits of the published value, better or worse; no plan (None) is worse than any."""
    theirs, ours = wanted["seconds"], seconds if seconds is None else float(format(seconds, wanted["digits"]))
    if theirs == ours:
        return "equal"
    return "better" if theirs is None or (ours is not None and ours < theirs) else "worse"


def pipedream_rows() -> Iterator[Row]:
    """Every row of PipeDream's optimizer."""
    for wanted in published("pipedream"):
        cost = pipedream_instance(wanted)
        started = time.process_time()
        ideals = enumerate_ideals(cost.groups, MAX_IDEALS)
        best = Levels(cost, ideals, replicate=not wanted["straight"]).best()
        spent = time.process_time() - started
        if best is None:
            raise AssertionError("every published row has a plan")
        stages = [(start, end, len(devices)) for start, end, devices in placed_stages(cost, best[1])]
        theirs = published_plan(cost, ideals, wanted)
        yield {
            "peer": "pipedream",
            "instance": wanted["model"],
            "k": sum(degree for _, _, degree in stages),
            "setting": _setting(wanted),
            "theirs": wanted["seconds"],
            "objective": best[0],
            "bound": best[0],
            "verdict": verdict(wanted, best[0]),
            "their_plan_s": placed_period_s(cost, theirs) if theirs else None,
            "same_plan": _same(wanted, stages),
            "plan": " ".join(f"{start}-{end}x{degree}" for start, end, degree in stages),
            "cpu_s": spent,
        }


def pipedream_instance(wanted: Row) -> PipeDreamCost:
    """The model of one published row."""
    text = (INSTANCES / "pipedream" / f"{wanted['model']}.graph.txt").read_text(encoding="utf-8")
    levels = [Level(count=count, bandwidth_bytes_per_s=width) for count, width in wanted["levels"]]
    return pipedream_cost(text, levels, activation_transfers=wanted["transfers"])


def published_plan(cost: PipeDreamCost, ideals: tuple[int, ...], wanted: Row) -> list[Placed] | None:
    """Their plan on devices in order, where their cuts are known: their state n follows our n-th ideal."""
    if wanted["cuts"] is None:
        return None
    placed, device, bounds = list[Placed](), 0, [0, *wanted["cuts"], len(ideals) - 1]
    for degree, start, end in zip(wanted["degrees"], bounds, bounds[1:], strict=False):
        placed.append((ideals[end] & ~ideals[start], tuple(range(device, device + degree))))
        device += degree
    return placed


def piper_rows() -> Iterator[Row]:
    """Every row of Piper's program."""
    text = (INSTANCES / "piper" / "bert32a100.json").read_text(encoding="utf-8")
    for wanted in published("piper"):
        cost = piper_cost(
            text,
            num_devices=wanted["devices"],
            memory_bytes=wanted["memory_gib"] * 2.0**30,
            bandwidth_bytes_per_s=PIPER_BANDWIDTH,
        )
        started = time.process_time()
        best = piper_dp(cost)
        spent = time.process_time() - started
        yield {
            "peer": "piper",
            "instance": wanted["model"],
            "k": wanted["devices"],
            "setting": f"{wanted['memory_gib']} GiB",
            "theirs": wanted["seconds"],
            "objective": best.value_s if best else None,
            "bound": best.bound_s if best else None,
            "verdict": verdict(wanted, best.value_s if best else None),
            "their_plan_s": None,
            "same_plan": None if best is None or "stages" not in wanted else len(best.stages) == wanted["stages"],
            "plan": " ".join(f"{s.layers.bit_count()}x{s.degree}x{s.tensor}" for s in best.stages) if best else "none",
            "cpu_s": spent,
        }


def _setting(wanted: Row) -> str:
    levels = " x ".join(f"{count} at {width / 1e9:g} GB/s" for count, width in wanted["levels"])
    return levels + ("" if wanted["transfers"] else ", no transfers") + (", straight" if wanted["straight"] else "")


def _same(wanted: Row, stages: list[tuple[int, int, int]]) -> bool | None:
    """Equal replication degrees and cuts; None where one of the two is not known to be comparable."""
    degrees, cuts = [degree for _, _, degree in stages], [end for _, end, _ in stages[:-1]]
    if degrees != wanted["degrees"]:
        return False
    return None if wanted["cuts"] is None else cuts == wanted["cuts"]


def table(rows: Iterable[Row]) -> Table:
    """One line per row."""
    shown = Table(*(name.replace("_", " ") for name in COLUMNS), box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*(_cell(name, row[name]) for name in COLUMNS))
    return shown


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if name == "cpu_s" else f"{value:.8f}"
    return str(value)


def main() -> None:
    """All rows; tables on standard output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows")
    asked = parser.parse_args()
    done = [*pipedream_rows(), *piper_rows()]
    Console(width=None if sys.stdout.isatty() else 240).print(table(done))
    if asked.json:
        write_rows(done, asked.json)


if __name__ == "__main__":
    main()
