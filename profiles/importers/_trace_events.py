"""The events of a Chrome trace as spans on threads, every number checked, and how they lie in each other."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from planner.checks import MAX_SECONDS
from planner.errors import InputError

MICROSECONDS = 1e6
MAX_EVENTS = 20_000_000
MAX_NESTING = 500
OPERATORS, ANNOTATIONS, FUNCTIONS = "cpu_op", "user_annotation", "python_function"
KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
MEMORY = "[memory]"
STEP = "ProfilerStep#"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """A complete event: microseconds since the trace's clock began, and what it carries."""

    name: str
    category: str
    thread: tuple[str, str]
    start_us: float
    duration_us: float
    args: Mapping[str, Any]

    @property
    def end_us(self) -> float:
        """When it ended."""
        return self.start_us + self.duration_us

    def whole(self, key: str) -> int | None:
        """A whole number among the arguments, or None."""
        value = self.args.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Spans by category in the order of their starts, memory events in the order of time."""

    spans: dict[str, list[Span]] = field(default_factory=dict)
    memory: list[Span] = field(default_factory=list)

    def of(self, category: str) -> list[Span]:
        """The spans of one category."""
        return self.spans.get(category, [])


def read_trace(text: str) -> Trace:
    """The last step of the trace, or all of it without `ProfilerStep#` annotations; InputError names the event."""
    trace = Trace()
    for number, event in enumerate(_events(text)):
        if isinstance(event, dict) and event.get("ph") in ("X", "i"):
            span = _span(number, event)
            if event["ph"] == "X":
                trace.spans.setdefault(span.category, []).append(span)
            elif span.name == MEMORY:
                trace.memory.append(span)
    for spans in (*trace.spans.values(), trace.memory):
        spans.sort(key=lambda span: (span.start_us, -span.duration_us))
    return _last_step(trace)


def _events(text: str) -> list[Any]:
    try:
        values = json.loads(text)
    except RecursionError:
        raise InputError("the trace is nested too deep: is it a Chrome trace?") from None
    except ValueError as fault:
        raise InputError(f"the trace is not valid JSON: {fault}") from None
    events = values.get("traceEvents") if isinstance(values, dict) else values
    if not isinstance(events, list):
        raise InputError("a Chrome trace is a JSON object with a list `traceEvents`", pointer="/traceEvents")
    if len(events) > MAX_EVENTS:
        raise InputError(f"the trace has {len(events)} events (limit {MAX_EVENTS}): record fewer steps")
    return events


def _span(number: int, event: dict[str, Any]) -> Span:
    args = event.get("args", {})
    return Span(
        name=_text(number, event, "name"),
        category=_text(number, event, "cat") if "cat" in event else "",
        thread=(str(event.get("pid"))[:80], str(event.get("tid"))[:80]),
        start_us=_microseconds(number, event, "ts"),
        duration_us=_microseconds(number, event, "dur") if event["ph"] == "X" else 0.0,
        args=args if isinstance(args, dict) else {},
    )


def _text(number: int, event: dict[str, Any], key: str) -> str:
    value = event.get(key)
    if not isinstance(value, str):
        at = f"/traceEvents/{number}/{key}"
        raise InputError(f"event {number}: {key} is {str(value)[:60]!r}: it must be text", pointer=at)
    return value


def _microseconds(number: int, event: dict[str, Any], key: str) -> float:
    value, most = event.get(key), MAX_SECONDS * MICROSECONDS * MICROSECONDS
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InputError(
            f"event {number} ({str(event.get('name'))[:60]!r}): {key} is {str(value)[:60]!r}: it must be microseconds "
            f"between 0 and {most:g}",
            pointer=f"/traceEvents/{number}/{key}",
        )
    return float(value)


def _last_step(trace: Trace) -> Trace:
    steps = [span for span in trace.of(ANNOTATIONS) if span.name.startswith(STEP)]
    if not steps:
        return trace
    return Trace(
        spans={category: list(_within(spans, steps[-1], category)) for category, spans in trace.spans.items()},
        memory=[event for event in trace.memory if event.start_us >= steps[-1].start_us],
    )


def _within(spans: Iterable[Span], step: Span, category: str) -> Iterator[Span]:
    """What starts in the step; what runs on a device may start later."""
    end = math.inf if category in KERNELS else step.end_us
    return (span for span in spans if step.start_us <= span.start_us < end and not span.name.startswith(STEP))


@dataclass(slots=True, eq=False)
class Node:
    """A span with the spans that lie directly in it."""

    span: Span
    children: list[Node] = field(default_factory=list)

    def all(self) -> Iterator[Span]:
        """This span and all below it, in the order of their starts."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node.span
            waiting.extend(reversed(node.children))


def nested(spans: Iterable[Span]) -> list[Node]:
    """The outermost spans of all threads in the order of their starts, each with those within it."""
    roots: list[Node] = []
    for _, of_thread in groupby(sorted(spans, key=lambda span: span.thread), key=lambda span: span.thread):
        stack: list[Node] = []
        for span in of_thread:
            while stack and stack[-1].span.end_us <= span.start_us:
                stack.pop()
            if len(stack) == MAX_NESTING:
                raise InputError(f"{span.name[:60]!r} lies in {MAX_NESTING} other events: is it a trace of torch?")
            node = Node(span)
            (stack[-1].children if stack else roots).append(node)
            stack.append(node)
    return sorted(roots, key=lambda node: node.span.start_us)


class Windows:
    """Which of some spans, none of which lies in another, is open on a thread at a time, and which was the last."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._of: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            self._of.setdefault(span.thread, []).append(span)
        self._starts = {thread: [span.start_us for span in found] for thread, found in self._of.items()}

    def last(self, thread: tuple[str, str], at_us: float) -> Span | None:
        """The span of the thread that began last, at `at_us` or before."""
        number = bisect.bisect_right(self._starts.get(thread, []), at_us)
        return self._of[thread][number - 1] if number else None

    def at(self, thread: tuple[str, str], at_us: float) -> Span | None:
        """The span of the thread that is open."""
        last = self.last(thread, at_us)
        return last if last is not None and at_us < last.end_us else None
