"""Small line plots on logarithmic axes, as SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 300, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 30, 38
COLOURS = ("#1f5fa8", "#c2571a", "#3f7f3f", "#7a4fa3")
STYLE = "text{font:11px sans-serif;fill:#333}.t{font-weight:bold}.a{stroke:#999;fill:none}.g{stroke:#e4e4e4;fill:none}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot: `lines` maps a name to its points, all values positive."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]


def svg(panels: Sequence[Panel], columns: int = 2) -> str:
    """The panels row by row; the same text for the same values."""
    rows = -(-len(panels) // columns)
    body = "".join(
        f'<g transform="translate({WIDTH * (i % columns)},{HEIGHT * (i // columns)})">{_panel(panel)}</g>\n'
        for i, panel in enumerate(panels)
    )
    size = f'width="{WIDTH * columns}" height="{HEIGHT * rows}"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>{background}\n{body}</svg>\n'


def _panel(panel: Panel) -> str:
    points = [point for line in panel.lines.values() for point in line]
    x = _Axis([p[0] for p in points], LEFT, WIDTH - RIGHT)
    y = _Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP)
    lines = "".join(
        _line(name, points, x, y, number) for number, (name, points) in enumerate(panel.lines.items()) if points
    )
    return "\n".join(
        (
            _text(WIDTH / 2, 16, panel.title, "middle", "t"),
            _text(WIDTH / 2, HEIGHT - 6, panel.x, "middle"),
            _text(4, TOP - 6, panel.y),
            *(_tick_x(x, value) for value in x.ticks()),
            *(_tick_y(y, value) for value in y.ticks()),
            f'<path class="a" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>',
            lines,
        )
    )


class _Axis:
    """Maps values to pixels, logarithmically, over whole decades."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        logs = [math.log10(value) for value in values]
        self.low, self.high = math.floor(min(logs)), math.ceil(max(logs) + 1e-9)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _tick_x(axis: _Axis, value: float) -> str:
    at, end = axis(value), HEIGHT - BOTTOM
    return f'<path class="g" d="M{at} {TOP}V{end}"/>' + _text(at, end + 14, f"{value:g}", "middle")


def _tick_y(axis: _Axis, value: float) -> str:
    at = axis(value)
    return f'<path class="g" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>' + _text(LEFT - 4, at + 4, f"{value:g}", "end")


def _line(name: str, points: list[tuple[float, float]], x: _Axis, y: _Axis, number: int) -> str:
    colour = COLOURS[number % len(COLOURS)]
    places = [(x(a), y(b)) for a, b in sorted(points)]
    path = "L".join(f"{a} {b}" for a, b in places)
    dots = "".join(f'<circle cx="{a}" cy="{b}" r="2.5" fill="{colour}"/>' for a, b in places)
    label = f'<text x="{LEFT + 8}" y="{TOP + 12 + 13 * number}" style="fill:{colour}">{escape(name)}</text>'
    return f'<path d="M{path}" stroke="{colour}" fill="none"/>{dots}{label}'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
