"""The smallest value that any of several monotone questions allows, from below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Question = Callable[[float], bool]
"""Whether a plan of some kind may take at most so many seconds: once true, true for all larger values."""


def largest_refuted(
    questions: Sequence[Question], low: float, high: float, step: float, expired: Callable[[], bool]
) -> float:
    """A value at or above `low` below which all questions say no, within `step` (relative) of the largest such value.

    `low` must be refuted already, `high` is where it ends. Questions that are refuted at the smaller values are asked
    no more. When `expired()` turns true, what is refuted so far is returned: sound at any time.
    """
    open_questions = list(questions)
    while high - low > step * high:
        middle = (low + high) / 2
        allowed = []
        for question in open_questions:
            if expired():
                return low
            if question(middle):
                allowed.append(question)
        if allowed:
            open_questions, high = allowed, middle
        else:
            low = middle
    return low
