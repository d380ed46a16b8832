"""Consoles: results on standard output, progress and remarks on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120
"""Columns where nobody watches and COLUMNS is not set: rich's own 80 would break the tables."""


def output() -> Console:
    """For results."""
    return _console(sys.stdout)


def remarks() -> Console:
    """For progress, hints and logs."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    """Names come from users, so nothing in a text is taken for markup, an emoji or something to highlight."""
    from rich.console import Console

    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
