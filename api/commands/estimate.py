"""`pipeplan estimate`: price a plan again, and check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from api.commands.opening import opened
from api.commands.options import JsonOption, PlanArgument, ProblemOption

if TYPE_CHECKING:
    from api.http.answers import EstimateAnswer
    from api.plan_file import OpenedPlan
    from planner.verify import Violation

MALFORMED, OVER_A_LIMIT = 2, 3


def command(plan: PlanArgument, problem: ProblemOption = None, json: JsonOption = False) -> None:
    """Price and simulate a plan, and list every rule that it breaks.

    Exit status 0 when it can run, 3 when a device would need more memory than it has, 2 when it is malformed.
    """
    from planner import codec

    given = opened(plan, problem)
    answer = _answer(given)
    if json:
        typer.echo(codec.dumps(answer), nl=False)
    else:
        _show(given, answer)
    if answer.violations:
        raise typer.Exit(_status(answer.violations))


def _answer(given: OpenedPlan) -> EstimateAnswer:
    from api.http.answers import EstimateAnswer
    from planner.service import estimate
    from planner.verify import verify

    violations = verify(given.plan, given.problem)
    can_run = _status(violations) != MALFORMED
    return EstimateAnswer(estimate=estimate(given.problem, given.plan) if can_run else None, violations=violations)


def _status(violations: tuple[Violation, ...]) -> int:
    if not violations:
        return 0
    return OVER_A_LIMIT if all(violation.code == "memory" for violation in violations) else MALFORMED


def _show(given: OpenedPlan, answer: EstimateAnswer) -> None:
    from api.terminal.console import output
    from api.terminal.result_view import show_estimate

    if answer.estimate is not None:
        show_estimate(given.plan, answer.estimate, given.problem, output())
    for violation in answer.violations:
        typer.echo(f"violation: {violation.code}: {violation.message}", err=True)
