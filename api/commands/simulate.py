"""`pipeplan simulate`: one iteration of a plan as a timeline."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.opening import opened
from api.commands.options import JsonOption, PlanArgument, ProblemOption


def command(
    plan: PlanArgument,
    problem: ProblemOption = None,
    lanes: Annotated[int, typer.Option("--lanes", min=1, help="How many lanes to draw.")] = 16,
    json: JsonOption = False,
) -> None:
    """Simulate one iteration of a plan and draw it to scale; --json prints every span."""
    from api.terminal.console import output
    from api.terminal.gantt import show_timeline
    from planner import codec
    from planner.service import simulate

    given = opened(plan, problem)
    timeline = simulate(given.problem, given.plan)
    if json:
        typer.echo(codec.dumps(timeline), nl=False)
    else:
        show_timeline(timeline, output(), lanes)
