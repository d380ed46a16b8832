"""Explanations on the terminal: what bounds the time, what would help, what was attained, and remedies."""

from __future__ import annotations

from collections.abc import Iterator

from api.terminal.units import memory, percent, seconds
from planner.result import Attained, Explanation, Remedy, WhatIf

MAX_WHAT_IFS = 4
REMEDY_COLUMNS = (
    ("change", False),
    ("stages", True),
    ("microbatch", True),
    ("simulated", True),
    ("peak memory", True),
    ("devices", True),
)


def explanation_rows(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """The critical path in a sentence, and the what-ifs, the largest gain first."""
    yield "what bounds it", explanation.message
    for number, each in enumerate(explanation.what_ifs[:MAX_WHAT_IFS]):
        yield "" if number else "what if", _what_if_words(each)


def attained_words(attained: Attained) -> str:
    """What a goal reached, and how sure it is that nothing better exists."""
    what = f"{attained.quantity.replace('_', ' ')} {attained.value:,}"
    if attained.proven:
        return f"{what}, proven the best ({attained.method}, over {attained.scope})"
    return f"{what}; nothing better than {attained.bound:,} exists ({attained.method}, over {attained.scope})"


def remedy_row(remedy: Remedy) -> tuple[str, ...]:
    """One change with its plan."""
    plan = remedy.plan
    return (
        remedy.change,
        str(len(plan.stages)),
        f"{plan.num_microbatches} x {plan.microbatch_size}",
        seconds(remedy.iteration_time_s),
        memory(remedy.peak_memory_bytes),
        str(remedy.num_devices_used),
    )


def _what_if_words(each: WhatIf) -> str:
    how = "planned again" if each.replanned else "this plan"
    gain = "no gain" if each.gain == 0 else f"{percent(each.gain)} more samples/s"
    if each.gain < 0:
        gain = f"{percent(-each.gain)} fewer samples/s"
    return f"{each.change}: {gain} ({seconds(each.iteration_time_s)} an iteration, {how})"
