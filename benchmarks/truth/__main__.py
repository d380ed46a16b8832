"""Predicted against measured: iteration time and memory of real runs on two cores of this machine.

Run as `python -m benchmarks.truth [--models gpt,vit] [--json FILE]`. Per model three steps, each written to the file
before the next one starts: layers and link are measured, all plans are predicted, the plans are run in turn. Without
`--models` all models are run; with it the others' results stay as they are, so that it can be done in pieces.
`--predict` makes the predictions again from the recorded costs, and runs nothing. The two cores must be free.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.truth.cases import CALIBRATION_CASES, CASES, DEVICES, OWN, TORCH, Case
from benchmarks.truth.corun import layer_costs, profile
from benchmarks.truth.links import LinkCost, link_cost
from benchmarks.truth.models import CALIBRATION, MODELS, TruthModel
from benchmarks.truth.passes import PassBytes
from benchmarks.truth.predicting import layers_of, overhead_s, problem_of, replayed
from benchmarks.truth.summary import memory_figures, time_figures
from benchmarks.truth.walking import peak_bytes
from planner import codec
from planner.graph import LayerGraph
from planner.profile import LayerCost
from planner.runtime import RunReport, run_in_turn
from planner.simulation.estimate import simulate_plan

DEFAULT_JSON = Path(__file__).resolve().parent.parent / "results" / "truth.json"
NUM_STEPS = 12
TIMEOUT_S = 280.0
Row = dict[str, Any]


def calibrate(results: Row) -> None:
    """What an action costs beside its passes, by executor; of a model that is not among the measured ones."""
    graph = CALIBRATION.loader()(CALIBRATION.microbatch_size).graph
    reports = list(zip(CALIBRATION_CASES, _run(CALIBRATION, layers_of(graph), CALIBRATION_CASES), strict=True))
    results["overhead_s"] = {
        kind.value: overhead_s((case, report) for case, report in reports if case.executor is kind)
        for kind in (OWN, TORCH)
    }


def measure_costs(model: TruthModel) -> Row:
    """Layer costs, bytes of every pass, and the link, all of the same two processes."""
    ranks = profile(model.loader(), model.microbatch_size)
    return {
        "measured_at": _now(),
        "run_queue_share": max(rank.run_queue_share for rank in ranks),
        "reference_s": statistics.mean(rank.reference_s for rank in ranks),
        "graph": codec.encode(ranks[0].graph),
        "costs": {name: dataclasses.asdict(cost) for name, cost in layer_costs(ranks).items()},
        "bytes": {
            layer: {kind: dataclasses.asdict(held) for kind, held in kinds.items()}
            for layer, kinds in ranks[0].bytes.items()
        },
        "largest_parameter_bytes": ranks[0].largest_parameter_bytes,
        "link": dataclasses.asdict(link_cost(ranks[0].links, ranks[1].links)),
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What predictions are made from."""

    model: TruthModel
    graph: LayerGraph
    costs: dict[str, LayerCost]
    bytes: dict[str, dict[str, PassBytes]]
    largest_parameter_bytes: dict[str, int]
    link: LinkCost
    reference_s: float
    overhead_s: dict[str, float]

    @classmethod
    def of(cls, model: TruthModel, costs: Row, overhead_s: dict[str, float]) -> Known:
        """From the recorded values."""
        return cls(
            model=model,
            graph=codec.decode(LayerGraph, costs["graph"]),
            costs={name: LayerCost(**values) for name, values in costs["costs"].items()},
            bytes={
                layer: {kind: PassBytes(**held) for kind, held in kinds.items()}
                for layer, kinds in costs["bytes"].items()
            },
            largest_parameter_bytes=costs["largest_parameter_bytes"],
            link=LinkCost(**costs["link"]),
            reference_s=costs["reference_s"],
            overhead_s=overhead_s,
        )

    def predict(self, case: Case) -> Row:
        """Iteration time and memory of a plan; nothing of it has been run."""
        plan = case.plan(layers_of(self.graph), self.model.microbatch_size)
        timeline, estimate = simulate_plan(self._problem(case), plan)
        lanes = {lane.devices[0]: lane for lane in timeline.lanes}
        return {
            "model": self.model.name,
            "plan": case.name,
            "executor": case.executor.value,
            "num_microbatches": case.num_microbatches,
            "predicted_s": estimate.iteration_time_s,
            "predicted_at": _now(),
            "ranks": [
                {
                    "simulated_bytes": peak_bytes(plan, self.graph, self.bytes, self.largest_parameter_bytes, rank),
                    "estimated_bytes": lanes[device].peak_memory_bytes,
                }
                for rank, device in enumerate(DEVICES)
            ],
        }

    def compare(self, row: Row, case: Case, report: RunReport) -> None:
        """Put what was measured beside what was predicted."""
        plan = case.plan(layers_of(self.graph), self.model.microbatch_size)
        peaks = {stage.devices[0]: stage.peak_memory_bytes for stage in report.stages}
        for rank, device in zip(row["ranks"], DEVICES, strict=True):
            rank["measured_bytes"] = peaks[device]
        row |= {
            "measured_s": report.iteration_time_s,
            "num_clean": report.noise.num_clean,
            "drift": (report.reference_s or self.reference_s) / self.reference_s - 1,
            "iterations_s": list(report.iteration_times_s),
            "replayed_s": replayed(self._problem(case), plan, report),
            "run_queue_shares": list(report.noise.run_queue_shares),
            "cpu_deviations": list(report.noise.cpu_deviations),
            "passes_s": [stage.passes_s for stage in report.stages],
            "optimizer_s": [stage.optimizer_s for stage in report.stages],
        }

    def _problem(self, case: Case) -> Any:
        overhead = self.overhead_s[case.executor.value]
        return problem_of(self.graph, self.costs, self.link, overhead, case, self.model.microbatch_size)


def _run(model: TruthModel, layers: Sequence[str], cases: Sequence[Case]) -> list[RunReport]:
    plans = [(case.plan(layers, model.microbatch_size), case.executor) for case in cases]
    return run_in_turn(plans, model.loader(), num_steps=NUM_STEPS, timeout_s=TIMEOUT_S)


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="seconds")


def _save(results: Row, path: Path) -> None:
    results["summary"] = summary(results)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    values = machine() | {"command": "python -m benchmarks.truth"}
    path.with_suffix(".machine.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def rows_of(results: Row) -> list[Row]:
    """All rows with a measurement."""
    return [row for model in results["models"].values() for row in model.get("rows", ()) if "measured_s" in row]


def summary(results: Row) -> Row:
    """Time of all rows, memory as simulated at allocator level and as the planner's estimate has it."""
    rows = rows_of(results)
    return {
        "runs": len(rows),
        "time": time_figures(rows),
        "memory_simulated": memory_figures(rows),
        "memory_estimated": memory_figures(rows, "estimated_bytes"),
    }


def run_model(name: str, results: Row, path: Path) -> None:
    """Measure costs, predict, save; then run, compare, save."""
    model = MODELS[name]
    costs = measure_costs(model)
    known = Known.of(model, costs, results["overhead_s"])
    rows = [known.predict(case) for case in CASES[name]]
    results["models"][name] = costs | {"rows": rows}
    _save(results, path)
    for case, row, report in zip(CASES[name], rows, _run(model, layers_of(known.graph), CASES[name]), strict=True):
        known.compare(row, case, report)
    _save(results, path)


def predict_again(results: Row, path: Path) -> None:
    """From the recorded costs, with the planner as it is now. What was measured stays."""
    for name, recorded in results["models"].items():
        known = Known.of(MODELS[name], recorded, results["overhead_s"])
        for case, row in zip(CASES[name], recorded["rows"], strict=True):
            again = known.predict(case)
            for rank, old in zip(again.pop("ranks"), row["ranks"], strict=True):
                old |= rank
            row |= again
    _save(results, path)


def show(results: Row) -> None:
    """The rows, and the figures over them."""
    columns = (
        "model",
        "plan",
        "clean",
        "measured ms",
        "predicted",
        "drift",
        "replayed",
        "peak MB",
        "simulated",
        "estimated",
    )
    table = Table(*columns)
    for row in rows_of(results):
        largest = max(row["ranks"], key=lambda rank: rank["measured_bytes"])
        held = largest["measured_bytes"]
        table.add_row(
            row["model"],
            row["plan"],
            str(row["num_clean"]),
            f"{1e3 * row['measured_s']:.1f}",
            _error(row["predicted_s"], row["measured_s"]),
            f"{100 * row['drift']:+.1f} %",
            _error(row["replayed_s"], row["measured_s"]),
            f"{held / 1e6:.0f}",
            _error(largest["simulated_bytes"], held),
            _error(largest["estimated_bytes"], held),
        )
    Console().print(table)
    Console().print(results["summary"])


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %"


def main(arguments: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}, or 'none' to calibrate only"
    )
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON)
    parser.add_argument("--predict", action="store_true", help="predict again from the recorded costs; run nothing")
    given = parser.parse_args(arguments)
    results: Row = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {"models": {}}
    if given.predict:
        predict_again(results, given.json)
    else:
        if "overhead_s" not in results or given.models == "none":
            calibrate(results)
        for name in given.models.split(",") if given.models != "none" else ():
            run_model(name, results, given.json)
        _save(results, given.json)
    show(results)


if __name__ == "__main__":
    main()
