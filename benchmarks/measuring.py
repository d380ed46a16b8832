"""Are measured profiles true? `python -m benchmarks.measuring [--json FILE] [--only NAMES]`.

Each model is profiled twice, in processes of their own with all others between them, as `pipeplan profile` does it. In
the same process a pass of the whole, uncut model runs after every chain, timed by the same
clock. Columns: the layers' forward and backward seconds added up against the whole pass; split backward against
ordinary backward; the largest difference of a stage (four in a row) between the two profiles, how far their reference
workloads are apart, and the verdict. On a quiet machine; takes some minutes. Needs the `torch` extra.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.children import run_child
from benchmarks.measured_models import MODELS, MeasuredModel
from benchmarks.proof import write_rows
from planner import codec
from planner.profile import CostTable
from planner.runtime.program import LOSS_LAYER, TracedProgram
from profiles.agreement import agreements
from profiles.model import ProfiledModel

COLUMNS = (
    "model", "layers", "sum_ms", "whole_ms", "sum/whole", "split/backward", "spread", "apart", "reference", "verdict",
    "error",
)  # fmt: skip
LIMIT_S = 300.0
MEMORY_GIB = 6.0
Row = dict[str, Any]


class WholePasses:
    """Times the uncut model, one pass per call; the first ones, which warm up, are thrown away."""

    def __init__(self, program: TracedProgram) -> None:
        from profiles.measuring.stopwatch import CpuStopwatch

        self._runnable = program.runnable
        self._inputs, self._target = program.runnable.make_batch(program.batch_size, 0)
        self._stopwatch = CpuStopwatch()
        self._seconds: list[float] = []

    def run(self) -> None:
        """Forward, loss and backward; gradients accumulate."""
        start = self._stopwatch.mark()
        loss = self._runnable.loss(self._runnable.model(*self._inputs), self._target)
        loss.backward()
        self._seconds.append(self._stopwatch.seconds(start, self._stopwatch.mark()))

    def median(self) -> float:
        from profiles.measuring.timing import WARM_UP_CHAINS, median

        return median(self._seconds[WARM_UP_CHAINS:])


def profiled(model: MeasuredModel) -> Row:
    """The profile as text, and seconds of the whole pass; it measures the process that it runs in."""
    from api.commands.surroundings import like_a_rank
    from profiles.measuring import measure
    from profiles.tracing import TraceLoader

    loader = TraceLoader(source=model.config, sequence_length=model.length)
    with like_a_rank() as environment:
        whole = WholePasses(loader(model.microbatch_size))

        def between(done: int, total: int, text: str) -> None:
            if text.endswith("seconds"):
                whole.run()

        made = measure(loader, [model.microbatch_size], environment=environment, on_progress=between)
    return {"profile": codec.dumps(made), "whole_s": whole.median()}


def row(name: str, first: Row, second: Row) -> Row:
    """Both profiles of a model in one line; the sums are those of the second."""
    empty: Row = dict.fromkeys(COLUMNS)
    error = first.get("error") or second.get("error")
    if error:
        return empty | {"model": name, "error": error}
    earlier, later = (codec.loads(ProfiledModel, given["profile"]) for given in (first, second))
    (agreement,) = agreements(earlier, later)
    table = later.profiles[0].tables[0]
    total_s = _sum(table)
    return empty | {
        "model": name,
        "layers": len(table.layers),
        "sum_ms": round(1e3 * total_s, 2),
        "whole_ms": round(1e3 * second["whole_s"], 2),
        "sum/whole": round(total_s / second["whole_s"], 4),
        "sums": [
            round(_sum(earlier.profiles[0].tables[0]) / first["whole_s"], 4),
            round(total_s / second["whole_s"], 4),
        ],
        "split/backward": round(_split_over_backward(table), 4),
        "spread": max(table.measurement.spread.values()) if table.measurement else None,
        "apart": round(agreement.apart, 4),
        "reference": None if agreement.reference is None else round(agreement.reference, 4),
        "verdict": "agree" if agreement.agrees else "drift said" if agreement.drifted else "unexplained",
        "stages": [round(stage.apart, 4) for stage in agreement.stages],
    }


def _sum(table: CostTable) -> float:
    return sum(cost.forward_s + cost.backward_s for cost in table.layers.values())


def _split_over_backward(table: CostTable) -> float:
    """Input and weight gradients of all layers over their ordinary backward passes, without the loss."""
    costs = [cost for layer, cost in table.layers.items() if layer != LOSS_LAYER and cost.backward_s]
    split = sum((cost.backward_input_s or 0.0) + (cost.backward_weight_s or 0.0) for cost in costs)
    return split / sum(cost.backward_s for cost in costs)


def rows(names: Iterable[str], progress: Console) -> list[Row]:
    """Every model once, then every model again."""
    rounds = [{name: _child(name, number, progress) for name in names} for number in (1, 2)]
    return [row(name, *(done[name] for done in rounds)) for name in names]


def _child(name: str, number: int, progress: Console) -> Row:
    progress.print(f"round {number}: {name}", highlight=False)
    return run_child("benchmarks.measuring", ["--child", name], LIMIT_S, MEMORY_GIB)


def shown(made: Iterable[Row]) -> Table:
    """One line per model."""
    result = Table(*COLUMNS, box=None, pad_edge=False)
    for one in made:
        result.add_row(*("" if one[name] is None else str(one[name]) for name in COLUMNS))
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measuring", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME", help="some models")
    parser.add_argument("--child", choices=MODELS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Profiles them; progress on standard error, the table on standard output."""
    asked = _arguments()
    if asked.child:
        print(json.dumps(profiled(MODELS[asked.child])))
        return
    made = rows(asked.only, Console(stderr=True))
    Console(width=None if sys.stdout.isatty() else 200).print(shown(made))
    if asked.json:
        write_rows(made, asked.json)


if __name__ == "__main__":
    main()
