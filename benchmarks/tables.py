"""Writes the committed results into `docs/`: `python -m benchmarks.tables`.

A section of these files between `<!-- NAME -->` and `<!-- end -->` is replaced by the tables of
`benchmarks/results/NAME.json`, under one line on what they ran. Text outside stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.proof import summary
from benchmarks.solving import SHIPPED

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PAGES = (PAGE, ROOT / "docs" / "tracing.md", ROOT / "docs" / "truth.md", ROOT / "docs" / "measuring.md")
SECTION = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PROVEN = 1e-6
Row = dict[str, Any]


def proof_tables(rows: list[Row]) -> str:
    """Summary per k, the shipped devices row by row, then objectives by k with the gap where one is left."""
    lines = [line | {"bound / objective": _digits(line["bound_over_objective"], 4)} for line in summary(rows)]
    shipped = [row | _rounded(row) for row in rows if row["setting"] == SHIPPED]
    return "\n\n".join(
        (
            markdown(("k", "rows", "proven", "without_bound", "bound / objective", "max_cpu_s"), lines),
            "Shipped devices, milliseconds:",
            markdown(("instance", "objective", "bound", "gap", "found_by", "proved_by", "cpu_s", "rss_mib"), shipped),
            "k accelerators, milliseconds (gap where it is not closed; CPU seconds):",
            _by_k([row for row in rows if row["setting"] != SHIPPED]),
        )
    )


def _by_k(rows: list[Row]) -> str:
    ks = sorted({row["k"] for row in rows})
    lines: dict[str, Row] = {}
    for row in rows:
        lines.setdefault(row["instance"], {"instance": row["instance"]})[str(row["k"])] = _cell(row)
    return markdown(("instance", *map(str, ks)), lines.values())


def _cell(row: Row) -> str:
    if not row["objective"]:
        return f"{row.get('status')} ({_digits(row['cpu_s'], 1)})"
    gap = "" if row["gap"] is None or row["gap"] <= PROVEN else f", gap {100 * row['gap']:.2g} %"
    return f"{row['objective']:.4f} ({_digits(row['cpu_s'], 1)}{gap})"


def scale_tables(rows: list[Row]) -> str:
    """One table per sweep."""
    columns = (
        "graph",
        "layers",
        "ideals",
        "devices",
        "objective_kind",
        "stages",
        "status",
        "gap",
        "iteration_gap",
        "found_by",
        "cpu_s",
        "wall_s",
        "rss_mib",
    )
    parts = []
    for sweep in dict.fromkeys(row["sweep"] for row in rows):
        members = [row | _rounded(row) for row in rows if row["sweep"] == sweep]
        parts += [f"By {sweep}:", markdown(columns, members)]
    return "\n\n".join(parts)


def estimates_table(rows: list[Row]) -> str:
    """One line per schedule and size."""
    columns = ("schedule", "ranks", "microbatches", "layouts", "per_minute", "cpu_ms", "engine_per_minute", "fallback")
    counts = ("per_minute", "engine_per_minute")
    return markdown(columns, [row | {name: f"{row[name]:,}" for name in counts} for row in rows])


def limits_table(rows: list[Row]) -> str:
    """One line per problem, optimizer and limit: seconds beyond the limit."""
    columns = ("problem", "optimizer", "limit_s", "over_s", "cpu_s", "plan", "bound")
    lines = [
        row
        | {name: _digits(row[name], 1) for name in ("limit_s", "over_s", "cpu_s")}
        | {name: "yes" if row[name] else "no" for name in ("plan", "bound")}
        for row in rows
    ]
    return markdown(columns, lines)


def agreement_table(values: Row) -> str:
    """The summary, one line per entry."""
    entries = values["summary"] | {"disagreements": len(values["summary"]["disagreements"])}
    return markdown(("what", "number"), [{"what": name, "number": f"{count:,}"} for name, count in entries.items()])


def architectures_table(rows: list[Row]) -> str:
    """How many there are of each kind, then all of them; what failed with its reason."""
    good = [row for row in rows if row["equal_bytes"]]
    kinds = [
        {
            "kind": kind,
            "traced": sum(row["kind"] == kind for row in good),
            "of": sum(row["kind"] == kind for row in rows),
        }
        for kind in dict.fromkeys(row["kind"] for row in rows)
    ]
    columns = ("architecture", "class", "layers", "edges", "operators", "parameters", "grain", "cpu_s", "rss_mib")
    failed = [f"{row['architecture']}: {row['error']}." for row in rows if not row["equal_bytes"]]
    return "\n\n".join((markdown(("kind", "traced", "of"), kinds), markdown(columns, good), *failed))


def measuring_table(rows: list[Row]) -> str:
    """One line per model: sums against the whole, and two profiles against each other."""
    columns = (
        "model", "layers", "sum_ms", "whole_ms", "sum/whole", "split/backward", "apart", "reference", "verdict",
    )  # fmt: skip
    return markdown(columns, rows)


def truth_table(values: Row) -> str:
    """The figures over all runs, then run by run; memory of the rank that needs most."""
    figures = [
        {"what": what.replace("_", " "), "runs": of.get("clean_runs", of.get("ranks"))}
        | {name: _percent(of[f"{prefix}{name}"]).removeprefix("+") for name in ("median", "p90", "worst", "bias")}
        for what, of, prefix in _truth_figures(values["summary"])
    ]
    time = values["summary"]["time"]
    rows = [_truth_row(row) for model in values["models"].values() for row in model["rows"] if "measured_s" in row]
    columns = ("model", "plan", "clean", "measured ms", "predicted", "host drift", "simulator", "peak MB", "simulated",
               "estimated")  # fmt: skip
    return "\n\n".join(
        (
            markdown(("what", "runs", "median", "p90", "worst", "bias"), figures),
            f"Largest regret of the plan predicted best: {_percent(time['worst_regret']).removeprefix('+')}; "
            f"Kendall's tau over pairs of one model and batch: {_digits(time['kendall_tau'], 2)}.",
            markdown(columns, rows),
        )
    )


def _truth_figures(summary: Row) -> list[tuple[str, Row, str]]:
    return [
        ("iteration time", summary["time"], ""),
        ("iteration time, host drift taken out", summary["time"], "without_drift_"),
        ("simulator alone, with the run's own CPU seconds", summary["time"], "replay_"),
        ("peak memory, simulated at allocator level", summary["memory_simulated"], ""),
        ("peak memory, the planner's estimate", summary["memory_estimated"], ""),
    ]


def _truth_row(row: Row) -> Row:
    most = max(row["ranks"], key=lambda rank: rank["measured_bytes"])
    return {
        "model": row["model"],
        "plan": row["plan"],
        "clean": row["num_clean"],
        "measured ms": _digits(1e3 * row["measured_s"], 1),
        "predicted": _percent(row["predicted_s"] / row["measured_s"] - 1),
        "host drift": _percent(row["drift"]),
        "simulator": _percent(row["replayed_s"] / row["measured_s"] - 1),
        "peak MB": _digits(most["measured_bytes"] / 1e6, 0),
        "simulated": _percent(most["simulated_bytes"] / most["measured_bytes"] - 1),
        "estimated": _percent(most["estimated_bytes"] / most["measured_bytes"] - 1),
    }


def published_table(rows: list[Row]) -> str:
    """Errors of estimates and of that project's own simulator."""
    names = {"error": "estimate", "informed_error": "measured efficiency", "their_error": "their simulator",
             "memory_error": "estimated memory", "their_memory_error": "their memory"}  # fmt: skip
    lines = [
        {
            "run": row["case"],
            "measured ms": _digits(row["measured_ms"], 0),
            "measured GiB": _digits(row["measured_gib"], 1),
        }
        | {title: _percent(row[name]) for name, title in names.items()}
        for row in rows
    ]
    return markdown(("run", "measured ms", "measured GiB", *names.values()), lines)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f} %"


def _rounded(row: Row) -> Row:
    values = {"objective": _digits(row.get("objective"), 6), "bound": _digits(row.get("bound"), 6)}
    values |= {"iteration_gap": _digits(row.get("iteration_gap"), 4)}
    values |= {"gap": _digits(row.get("gap"), 6), "cpu_s": _digits(row.get("cpu_s"), 2)}
    return values | {name: _digits(row.get(name), 0) for name in ("rss_mib",)}


def _digits(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def markdown(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """A Markdown table of these columns; what a row lacks is empty."""
    head = [f"| {' | '.join(name.replace('_', ' ') for name in columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*head, *(f"| {' | '.join(_text(row.get(name)) for name in columns)} |" for row in rows)])


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def ran_on(values: Row) -> str:
    """One line on date, command, machine and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    return (
        f"{values['date']}, `{values['command']}`; {values['processor']}, {values['cores']} cores, "
        f"{values['memory_gib']} GiB, {values['system']}, Python {values['python']}, {versions}."
    )


TABLES: dict[str, Callable[[Any], str]] = {
    "agreement": agreement_table,
    "architectures": architectures_table,
    "estimates": estimates_table,
    "limits": limits_table,
    "measuring": measuring_table,
    "proof-published": proof_tables,
    "proof-transformers": proof_tables,
    "scale": scale_tables,
    "truth": truth_table,
    "truth-published": published_table,
}


def filled(page: str, folder: Path) -> str:
    """The page with every known section renewed; sections without results stay."""

    def section(match: re.Match[str]) -> str:
        name = match["name"]
        source = folder / f"{name}.json"
        if name not in TABLES or not source.exists():
            return match[0]
        values = json.loads(source.with_suffix(".machine.json").read_text(encoding="utf-8"))
        tables = TABLES[name](json.loads(source.read_text(encoding="utf-8")))
        return f"{match[1]}\n{ran_on(values)}\n\n{tables}\n\n{match[3]}"

    return SECTION.sub(section, page)


def main() -> None:
    """Renews the pages."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")


if __name__ == "__main__":
    main()
