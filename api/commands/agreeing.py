"""`pipeplan profile --against`: two profiles of one model side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from api.commands.sourcing import Reading, read_source
from api.terminal.console import remarks
from api.terminal.grids import table
from api.terminal.units import milliseconds
from planner.errors import InputError
from profiles.agreement import Agreement, agreements
from profiles.model import ProfiledModel

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (("layers", False), ("earlier\nms", True), ("later\nms", True), ("apart", True))


def earlier_profile(path: Path) -> ProfiledModel:
    """The profile to compare with; InputError for anything else, before anything is measured."""
    found = read_source(str(path), Reading())
    if not isinstance(found, ProfiledModel):
        raise InputError(f"{str(path)!r} is no profile with costs: compare with a file of `pipeplan profile -o`")
    return found


def show_agreement(earlier: ProfiledModel, later: ProfiledModel) -> None:
    """A table per microbatch size and a sentence, on standard error: the profile itself may go to standard output."""
    console = remarks()
    for one in agreements(earlier, later):
        console.print(_table(one))
        console.print(one.verdict(), style="bold" if one.agrees else "bold red")


def _table(one: Agreement) -> Table:
    rows = [
        (
            stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} ... {stage.layers[-1]}",
            milliseconds(stage.earlier_s),
            milliseconds(stage.later_s),
            f"{stage.apart:+.1%}",
        )
        for stage in one.stages
    ]
    return table(f"Forward and backward on {one.device_type}, microbatch size {one.microbatch_size}", COLUMNS, rows)
