"""`pipeplan export`: a plan for an engine or a viewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.commands.opening import opened
from api.commands.options import OutputOption, PlanArgument, ProblemOption

if TYPE_CHECKING:
    from planner.timeline import Timeline


def command(
    plan: PlanArgument,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Target: see `pipeplan catalogue exporters`.")],
    output: OutputOption = None,
    problem: ProblemOption = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="FILE", help="With chrome_trace: what `run --json` printed, to compare."),
    ] = None,
) -> None:
    """Write a plan in the format of an engine or a viewer, to standard output or a file."""
    from api.terminal.files import check_writable, write_text
    from planner.exporters import EXPORTERS, ExportContext
    from planner.service import estimate, simulate

    exporter = EXPORTERS[to]
    check_writable(output)
    given = opened(plan, problem)
    price, timeline = estimate(given.problem, given.plan), simulate(given.problem, given.plan)
    context = ExportContext(
        problem=given.problem, plan=given.plan, estimate=price, timeline=timeline, measured=_timeline_of(measured)
    )
    text = exporter.export(context)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


def _timeline_of(path: Path | None) -> Timeline | None:
    """The timeline of a run's report. InputError for another document."""
    from api.terminal.files import read_text
    from planner import codec
    from planner.runtime.report import RunReport

    return None if path is None else codec.loads(RunReport, read_text(str(path))).timeline
