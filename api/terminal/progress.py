"""Progress of long work, on standard error; only where somebody watches, so that logs stay short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from api.terminal.console import remarks

Advance = Callable[[int, int, str], None]
"""(steps done, steps in all, what is being done)."""


@contextmanager
def progress_bar(title: str) -> Iterator[Advance]:
    """A bar that follows the calls of the yielded function, with the time so far and an estimate of what is left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = remarks()
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{title}: {text}" if text else title)

        yield advance


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """A sign of life for work whose length is not known."""
    console = remarks()
    if not console.is_terminal:
        yield
        return
    with console.status(title):
        yield
