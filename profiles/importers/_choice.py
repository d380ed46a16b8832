"""Which of several models a file is read for."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import InputError


def one_of(names: Sequence[str], wanted: str | None, what: str) -> str:
    """The wanted name, or the only one; InputError that lists them."""
    known = ", ".join(names)
    if wanted is not None and wanted not in names:
        raise InputError(f"there is no {what} {wanted[:80]!r} with costs: use one of {known or 'none'}")
    if wanted is None and len(names) != 1:
        raise InputError(f"there are {len(names)} {what}s with costs: name one with --model, of {known or 'none'}")
    return wanted or names[0]
