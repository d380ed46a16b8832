"""Options that several commands share: the same words everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.errors import InputError

PlanArgument = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="A file of `plan -o`, a PlanResult or a Plan; - is standard input."),
]
ProblemOption = Annotated[
    Path | None, typer.Option("--problem", help="The problem document of a plan that does not hold it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result to a file.")
]
FormatOption = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="Format of the source (default: guessed).")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of all randomness.")]


def count_or_auto(text: str) -> int | None:
    """A count, or None for `auto`; typer shows the fault."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor auto") from None


def counts(text: str) -> list[int]:
    """Comma-separated counts: `1,2,4`. InputError for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} is no list of whole numbers: write them as in 1,2,4") from None
