"""Opening the plan that a command is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from api.terminal.files import read_text

if TYPE_CHECKING:
    from api.plan_file import OpenedPlan


def opened(plan: str, problem: Path | None) -> OpenedPlan:
    """The plan in the named document, with its problem."""
    from api.plan_file import open_plan

    return open_plan(read_text(plan), None if problem is None else read_text(str(problem)))
