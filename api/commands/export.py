"""`pipeplan export`: a plan for an engine or a viewer."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.opening import opened
from api.commands.options import OutputOption, PlanArgument, ProblemOption


def command(
    plan: PlanArgument,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Target: see `pipeplan catalogue exporters`.")],
    output: OutputOption = None,
    problem: ProblemOption = None,
) -> None:
    """Write a plan in the format of an engine or a viewer, to standard output or a file."""
    from api.terminal.files import check_writable, write_text
    from planner.exporters import EXPORTERS, ExportContext
    from planner.service import estimate, simulate

    exporter = EXPORTERS[to]
    check_writable(output)
    given = opened(plan, problem)
    price, timeline = estimate(given.problem, given.plan), simulate(given.problem, given.plan)
    context = ExportContext(problem=given.problem, plan=given.plan, estimate=price, timeline=timeline)
    text = exporter.export(context)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
