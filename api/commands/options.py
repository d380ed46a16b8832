"""Options that several commands share: the same words everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.errors import InputError
from planner.workload import Recomputation

AUTO = "auto"

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
    str | None, typer.Option("--format", "--from", metavar="NAME", help="Format of the source (default: guessed).")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model, where a source holds several.")
]
MinibatchOption = Annotated[
    int, typer.Option("--minibatch", min=1, metavar="N", help="Samples behind the figures of a graph.txt or a trace.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of all randomness.")]


def count_or_auto(text: str) -> int | None:
    """A count, or None for `auto`; typer shows the fault."""
    if text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor auto") from None


def degree_or_auto(text: str) -> int | str:
    """A degree, or `auto`; typer shows the fault."""
    return AUTO if text == AUTO else _degree(text)


def recomputation_or_auto(text: str) -> Recomputation | str:
    """What is recomputed, or `auto`; typer shows the fault."""
    if text == AUTO:
        return AUTO
    try:
        return Recomputation(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(Recomputation)} and auto") from None


def switch_or_auto(text: str) -> bool | str:
    """`on`, `off` or `auto`; typer shows the fault."""
    known: dict[str, bool | str] = {"on": True, "off": False, AUTO: AUTO}
    if text not in known:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(known)}")
    return known[text]


def _degree(text: str) -> int:
    number = count_or_auto(text)
    if number is None or number < 0:
        raise typer.BadParameter(f"{text!r} is neither a degree nor auto")
    return number


def counts(text: str) -> list[int]:
    """Comma-separated counts: `1,2,4`. InputError for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} is no list of whole numbers: write them as in 1,2,4") from None
