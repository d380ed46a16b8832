"""`pipeplan import-plan`: a plan from the file of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.commands.options import OutputOption

if TYPE_CHECKING:
    from planner.problem import Problem


def command(
    layout: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="What an engine runs by: arguments, configuration, device map; - is input."
        ),
    ],
    problem: Annotated[
        Path, typer.Option("--problem", help="The problem that it is about: its document, or a file of `plan -o`.")
    ],
    format: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Format of the file (default: guessed).")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Read a layout of an engine as a plan of a problem, to `estimate`, `simulate` or `export` it.

    Exit status 0, or 2 where the file cannot be read or does not fit the problem.
    """
    from api.commands.comparing import baseline_plan
    from api.terminal.files import check_writable, write_text
    from planner import codec

    check_writable(output)
    text = codec.dumps(baseline_plan(layout, _problem(problem), format))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


def _problem(path: Path) -> Problem:
    """The problem in a problem document, or in a plan file, which holds its own."""
    from api.plan_file import PlanFile
    from api.terminal.files import read_text
    from planner import codec
    from planner.problem import Problem

    text = read_text(str(path))
    values = codec.parse(text)
    if isinstance(values, dict) and values.get("document") == codec.kind_of(PlanFile):
        return codec.loads(PlanFile, text).problem
    return codec.loads(Problem, text)
