"""Which architectures of transformers can be traced: `python -m benchmarks.architectures [--json FILE] [--only NAMES]`.

Small configurations of real classes (`benchmarks.small_models`) are traced on real tensors at every grain. A row counts
layers and edges at grain `block`, names the finest grain that works, and says whether the graph is a DAG whose
parameter bytes (tied ones once) are the model's. Published sizes (`LARGE`) are traced on shapes only and their work is
recorded, each in a process of its own within 6 GiB of address space. Needs the `torch` extra.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.children import run_child
from benchmarks.proof import write_rows
from benchmarks.small_models import LARGE, MODELS, Entry
from planner.checks import check_graph
from planner.errors import InputError
from planner.graph import LayerGraph
from planner.runtime.program import TracedProgram
from profiles.model import Grain

FINEST_FIRST = (Grain.OPERATOR, Grain.MODULE, Grain.BLOCK)
COLUMNS = (
    "architecture", "kind", "class", "layers", "edges", "operators", "parameters", "equal_bytes", "grain", "cpu_s",
    "rss_mib", "error",
)  # fmt: skip
BATCH_SIZE = 2
LARGE_LIMIT_S = 600.0
"""Wall-clock, for a busy machine; what counts is CPU seconds."""
LARGE_MEMORY_GIB = 6.0
Row = dict[str, Any]


def small_row(name: str, entry: Entry) -> Row:
    """The row of a small model."""
    start = time.process_time()
    programs, error = dict[Grain, TracedProgram](), ""
    for grain in FINEST_FIRST:
        try:
            programs[grain] = _traced(entry, grain)
        except InputError as fault:
            error = error or str(fault)
    row = _described(name, entry) | {"error": error, "cpu_s": round(time.process_time() - start, 2)}
    if not programs:
        return row
    return row | _counted(programs) | {"grain": next(iter(programs)).value}


def large_row(name: str, entry: Entry) -> Row:
    """The row of a published size, traced and recorded on shapes only; it measures the process that it runs in."""
    from profiles.measuring.record import record
    from profiles.tracing import TraceLoader

    loader = TraceLoader(source=entry.config, sequence_length=entry.length, dtype="bfloat16", device="meta")
    program = loader(1)
    made = record(program, dtype="bfloat16", sequence_length=entry.length)
    assert sum(work.forward_flops for work in made.work.values()) > 0
    return (
        _described(name, entry)
        | _counted({Grain.BLOCK: program})
        | {"grain": Grain.BLOCK.value, "cpu_s": round(time.process_time(), 2), "rss_mib": _peak_mib()}
    )


def rows(names: Iterable[str]) -> Iterable[Row]:
    """One row after another; large models in processes of their own."""
    for name in names:
        if name in MODELS:
            yield small_row(name, MODELS[name])
        else:
            child = run_child("benchmarks.architectures", ["--child", name], LARGE_LIMIT_S, LARGE_MEMORY_GIB)
            yield _described(name, LARGE[name]) | child


def is_dag_of_the_model(graph: LayerGraph, num_bytes: int) -> bool:
    """Whether the layers hold `num_bytes`, tied parameters once. InputError when the graph is no DAG."""
    check_graph(graph)
    held = sum(layer.parameter_bytes for layer in graph.layers)
    return held - sum(tied.parameter_bytes * (len(tied.layers) - 1) for tied in graph.tied) == num_bytes


def _traced(entry: Entry, grain: Grain) -> TracedProgram:
    from profiles.tracing import TraceLoader

    return TraceLoader(source=entry.config, sequence_length=entry.length, grain=grain)(BATCH_SIZE)


def _counted(programs: dict[Grain, TracedProgram]) -> Row:
    """Counts of the traces at the grains that worked."""
    coarsest = programs[list(programs)[-1]]
    parameters = list(coarsest.runnable.model.parameters())
    num_bytes = sum(p.numel() * p.element_size() for p in parameters)
    finest = programs.get(Grain.OPERATOR)
    return {
        "layers": len(coarsest.graph.layers),
        "edges": len(coarsest.graph.edges),
        "operators": len(finest.graph.layers) if finest else None,
        "parameters": sum(p.numel() for p in parameters),
        "equal_bytes": all(is_dag_of_the_model(program.graph, num_bytes) for program in programs.values()),
    }


def _described(name: str, entry: Entry) -> Row:
    row: Row = dict.fromkeys(COLUMNS)
    return row | {"architecture": name, "kind": entry.kind, "class": entry.config["architectures"][0]}


def _peak_mib() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def table(made: Iterable[Row]) -> Table:
    """One line per row, without the reasons."""
    result = Table(*COLUMNS[:-1], box=None, pad_edge=False)
    for row in made:
        result.add_row(*("" if row[name] is None else str(row[name]) for name in COLUMNS[:-1]))
    return result


def _arguments() -> argparse.Namespace:
    known = [*MODELS, *LARGE]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows")
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME", help="some architectures")
    parser.add_argument("--child", choices=LARGE, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Traces them; progress on standard error, the table on standard output."""
    asked, progress = _arguments(), Console(stderr=True)
    if asked.child:
        print(json.dumps(large_row(asked.child, LARGE[asked.child])))
        return
    made: list[Row] = []
    for row in rows(asked.only):
        made.append(row)
        progress.print(f"{len(made)}/{len(asked.only)} {row['architecture']}", highlight=False)
    Console(width=None if sys.stdout.isatty() else 200).print(table(made))
    if asked.json:
        write_rows(made, asked.json)


if __name__ == "__main__":
    main()
