"""How long a stage must idle in a synchronous schedule: what 1F1B and GPipe add to the pipeline theorem.

Let R be the passes (forward and backward) of one microbatch through all stages after stage s, M the microbatches.

1F1B holds at most K microbatches at stage s, K - 1 of them others (K - 1 <= the stages after s). From its first
forward on, s waits F_s + R for its first backward and can meanwhile run K forwards: it idles R - (K-1) F_s. From the
end of its last forward it waits R for its last backward and can meanwhile run K - 1 backwards: it idles R - (K-1) B_s.
With K < M the last forward comes after the first backward, so both count; else the larger does.

GPipe runs all forwards before all backwards: the last forward leaves the pipeline after sum F + (M-1) F_s at the
earliest, and the backwards take sum B + (M-1) B_s from then on. Beyond the stages before s and M (F_s + B_s) that is R.

Of any other schedule nothing is assumed. All expressions grow with F_s and B_s together with M (F_s + B_s), so least
seconds give a lower bound. They work on numbers and numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Number = Any

IdleRule = Callable[[Number, Number, Number, int, int], Number]
"""(R, F_s, B_s, stages after s at most, M) -> seconds."""


def idle_rule(schedule: str, *, dealt: bool, trains: bool) -> IdleRule:
    """The rule of a schedule; nothing is known where microbatches are dealt or nothing is trained."""
    if dealt or not trains:
        return _none
    return {"1f1b": _one_f_one_b, "gpipe": _gpipe}.get(schedule, _none)


def _none(rest: Number, forward: Number, backward: Number, after: int, count: int) -> Number:
    return 0.0 * rest


def _gpipe(rest: Number, forward: Number, backward: Number, after: int, count: int) -> Number:
    return rest


def _one_f_one_b(rest: Number, forward: Number, backward: Number, after: int, count: int) -> Number:
    others = min(after, count - 1)
    first, last = _positive(rest - others * forward), _positive(rest - others * backward)
    return first + last if others < count - 1 else _larger(first, last)


def _positive(value: Number) -> Number:
    return value * (value > 0)


def _larger(a: Number, b: Number) -> Number:
    return a * (a >= b) + b * (b > a)
