"""Many ids in little space."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_RUNS = 2
MAX_ID_LENGTH = 28
MAX_LINE = 22
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def layer_range(layers: Sequence[str]) -> str:
    """`first .. last (count)`; the beginning of a long id is left out, its end tells layers apart."""
    if len(layers) <= 1:
        return "".join(map(_end, layers))
    return span_text(_end(layers[0]), f"{_end(layers[-1])} ({len(layers)})")


def span_text(first: str, last: str) -> str:
    """`first .. last`, on two lines where one would be wide."""
    return f"{first} .. {last}" if len(first) + len(last) <= MAX_LINE else f"{first} ..\n{last}"


def device_ranges(devices: Sequence[str]) -> str:
    """Consecutive numbers joined: `node0/gpu0-7`; of more than two runs the first and the last, with the count."""
    runs = _runs(devices)
    texts = [_text(run) for run in runs]
    if len(texts) <= MAX_RUNS:
        return ", ".join(texts)
    return span_text(texts[0], f"{texts[-1]} ({len(devices)})")


def _end(name: str) -> str:
    return name if len(name) <= MAX_ID_LENGTH else f"..{name[2 - MAX_ID_LENGTH :]}"


def _runs(devices: Sequence[str]) -> list[list[str]]:
    runs: list[list[str]] = []
    for device in devices:
        if runs and _follows(runs[-1][-1], device):
            runs[-1].append(device)
        else:
            runs.append([device])
    return runs


def _follows(before: str, after: str) -> bool:
    a, b = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(after)
    return a is not None and b is not None and a[1] == b[1] and int(a[2]) + 1 == int(b[2])


def _text(run: list[str]) -> str:
    if len(run) == 1:
        return run[0]
    last = _NUMBERED.fullmatch(run[-1])
    assert last is not None  # a run of several has numbers
    return f"{run[0]}-{last[2]}"
