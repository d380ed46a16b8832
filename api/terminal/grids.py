"""Small helpers around rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(title: str, columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> Table:
    """A table; columns are (heading, whether it holds numbers)."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading, is_number in columns:
        made.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values in two columns, without lines."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made
