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
PAGES = (PAGE, ROOT / "docs" / "tracing.md", ROOT / "docs" / "measuring.md")
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
    "measuring": measuring_table,
    "proof-published": proof_tables,
    "proof-transformers": proof_tables,
    "scale": scale_tables,
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
