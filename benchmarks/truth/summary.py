"""Figures over all rows: how far predictions are off, and whether the plan predicted best is the best."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]
FEWEST_CLEAN = 3
"""Runs with fewer undisturbed iterations are listed, and left out of the figures."""


def is_clean(row: Row) -> bool:
    """Whether enough iterations of the run were undisturbed."""
    return bool(row.get("num_clean", 0) >= FEWEST_CLEAN)


def time_figures(rows: Iterable[Row]) -> Row:
    """Errors of predicted iteration times over the clean runs.

    `without_drift` are those of predictions that are scaled by how much slower the host was in the run than in the
    profile; `replay` those of the simulator alone, with the seconds that passes took in the run.
    """
    clean = [row for row in rows if is_clean(row)]
    errors = [row["predicted_s"] / row["measured_s"] - 1 for row in clean]
    steady = [row["predicted_s"] * (1 + row["drift"]) / row["measured_s"] - 1 for row in clean]
    replays = [row["replayed_s"] / row["measured_s"] - 1 for row in clean]
    return {
        "clean_runs": len(clean),
        **_spread(errors),
        **{f"without_drift_{name}": value for name, value in _spread(steady).items()},
        **{f"replay_{name}": value for name, value in _spread(replays).items()},
        "worst_regret": max(regrets(clean).values(), default=0.0),
        "kendall_tau": kendall_tau(clean),
    }


def memory_figures(rows: Iterable[Row], predicted: str = "simulated_bytes") -> Row:
    """Errors of predicted peaks over all ranks of runs by our own executor."""
    ranks = [rank for row in rows if row["executor"] == "own" for rank in row.get("ranks", ())]
    return {"ranks": len(ranks), **_spread([rank[predicted] / rank["measured_bytes"] - 1 for rank in ranks])}


def regrets(rows: Iterable[Row]) -> dict[str, float]:
    """Per group of plans for one model and batch, how much slower than the best the one predicted best was."""
    found = {}
    for name, group in groups(rows).items():
        chosen = min(group, key=lambda row: float(row["predicted_s"]))
        found[name] = chosen["measured_s"] / min(row["measured_s"] for row in group) - 1
    return found


def kendall_tau(rows: Iterable[Row]) -> float:
    """Pairs of plans of one group that are in the right order, less those in the wrong one, as a share of all."""
    signs = [
        (a["predicted_s"] - b["predicted_s"]) * (a["measured_s"] - b["measured_s"])
        for group in groups(rows).values()
        for a, b in combinations(group, 2)
        if a["predicted_s"] != b["predicted_s"]
    ]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(signs) if signs else 1.0


def groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of one model and number of microbatches."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row['model']} x{row['num_microbatches']}", []).append(row)
    return found


def _spread(errors: Sequence[float]) -> Row:
    """Median, 90th percentile and largest absolute error, and the mean with its sign."""
    if not errors:
        return {"median": None, "p90": None, "worst": None, "bias": None}
    sizes = sorted(map(abs, errors))
    return {
        "median": statistics.median(sizes),
        "p90": sizes[min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))],
        "worst": sizes[-1],
        "bias": statistics.mean(errors),
    }
