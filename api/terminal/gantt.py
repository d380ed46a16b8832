"""A timeline in characters.

stage of       |0123..0a1b2c3d...====#|
one lane        | forward of microbatch 0, backward of the same one: a, all-reduce, optimizer
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from api.terminal.names import device_ranges
from api.terminal.units import seconds
from planner.timeline import Lane, Span, Timeline

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

IDLE = "."
SYMBOLS = {"transfer": "~", "all_reduce": "=", "optimizer": "#"}
FORWARDS, BACKWARDS, WEIGHTS = "0123456789", "abcdefghij", "klmnopqrst"
STYLES = {"F": "cyan", "B": "magenta", "transfer": "yellow", "all_reduce": "green", "optimizer": "blue", "idle": "dim"}
LEGEND = "0-9 forward, a-j backward (last digit of the microbatch), = all-reduce, # optimizer, ~ transfer, . idle"
SPLIT_LEGEND = "k-t weight gradient, where the backward pass is split"
MIN_CELLS = 20
_ACTION = re.compile(r"\d+([FBIW])(\d+)")


def show_timeline(timeline: Timeline, console: Console, max_lanes: int) -> None:
    """Print the first lanes to scale, with a legend."""
    from rich.text import Text

    lanes = timeline.lanes[:max_lanes]
    labels = [f"{number} {' '.join(device_ranges(lane.devices).split())}"[:28] for number, lane in enumerate(lanes)]
    margin = max(map(len, labels), default=0)
    cells = max(MIN_CELLS, console.width - margin - 3)
    for label, lane in zip(labels, lanes, strict=True):
        console.print(Text.assemble(label.ljust(margin), " |", _bar(lane, timeline.makespan_s, cells), "|"))
    if len(timeline.lanes) > max_lanes:
        console.print(f"... and {len(timeline.lanes) - max_lanes} more lanes (--lanes shows more)")
    console.print(f"{seconds(timeline.makespan_s)} from left to right, bubble {100 * timeline.bubble_fraction:.1f} %")
    split = any(_is_weight_gradient(span) for lane in lanes for span in lane.spans)
    console.print(LEGEND)
    if split:
        console.print(SPLIT_LEGEND)


def _bar(lane: Lane, makespan_s: float, cells: int) -> Text:
    from rich.text import Text

    bar = Text()
    for span in owners(lane.spans, makespan_s, cells):
        bar.append(*_look(span))
    return bar


def owners(spans: tuple[Span, ...], makespan_s: float, cells: int) -> list[Span | None]:
    """The span that fills most of each cell, None where idling does. O(spans + cells they touch)."""
    longest = [0.0] * cells
    covered = [0.0] * cells
    owner: list[Span | None] = [None] * cells
    for span in spans:
        for cell, share in _shares(span, makespan_s, cells):
            covered[cell] += share
            if share > longest[cell]:
                longest[cell], owner[cell] = share, span
    return [span if 1.0 - covered[i] <= longest[i] else None for i, span in enumerate(owner)]


def _shares(span: Span, makespan_s: float, cells: int) -> Iterator[tuple[int, float]]:
    """(cell, covered share of it) for the cells that a span touches."""
    if makespan_s <= 0:
        return
    start, end = span.start_s / makespan_s * cells, span.end_s / makespan_s * cells
    for cell in range(int(start), min(cells, int(end) + 1)):
        share = min(end, cell + 1.0) - max(start, float(cell))
        if share > 0:
            yield cell, share


def _is_weight_gradient(span: Span) -> bool:
    action = _ACTION.fullmatch(span.label)
    return action is not None and action[1] == "W"


def _look(span: Span | None) -> tuple[str, str]:
    """Character and style."""
    if span is None:
        return IDLE, STYLES["idle"]
    action = _ACTION.fullmatch(span.label)
    if action is None:
        return SYMBOLS.get(span.category, "?"), STYLES.get(span.category, "")
    kind, number = action[1], int(action[2]) % 10
    alphabet = {"F": FORWARDS, "W": WEIGHTS}.get(kind, BACKWARDS)
    return alphabet[number], STYLES["F"] if kind == "F" else STYLES["B"]
