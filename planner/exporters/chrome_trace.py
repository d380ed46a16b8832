"""A timeline in the Chrome trace format, which Perfetto and chrome://tracing open.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format"): complete
events (`ph` X) with `ts` and `dur` in microseconds, metadata events (`ph` M) that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from planner.errors import ExportError
from planner.exporters.base import EXPORTERS, ExportContext
from planner.timeline import Lane, Span, Timeline

MICROSECONDS_PER_SECOND = 1e6
THREADS = ("compute", "transfer", "all_reduce", "optimizer")
"""One track per category inside a lane, in this order; further categories follow."""
MEASURED = "measured "
"""Stands before the devices of lanes that were measured."""


@EXPORTERS.register
class ChromeTrace:
    """One process per lane, one thread per category of spans."""

    name = "chrome_trace"
    media_type = "application/json"
    file_suffix = ".trace.json"

    def export(self, context: ExportContext) -> str:
        """The simulated timeline as trace events, a measured one below it; ExportError when there is none."""
        if context.timeline is None:
            raise ExportError("there is no timeline to export: simulate the plan first")
        return (
            json.dumps(trace_document(context.timeline, context.measured), ensure_ascii=False, allow_nan=False) + "\n"
        )


def trace_document(timeline: Timeline, measured: Timeline | None = None) -> dict[str, Any]:
    """The trace as JSON values: metadata first, then the spans of every lane in order. Both timelines start at 0."""
    lanes = [(lane, "") for lane in timeline.lanes]
    other = {"makespan_s": timeline.makespan_s, "bubble_fraction": timeline.bubble_fraction}
    if measured is not None:
        lanes += [(lane, MEASURED) for lane in measured.lanes]
        other["measured_makespan_s"] = measured.makespan_s
    events = [event for number, lane in enumerate(lanes) for event in _lane_events(number, *lane)]
    return {
        "displayTimeUnit": "ms",
        "otherData": other,
        "traceEvents": events,
    }


def _lane_events(number: int, lane: Lane, prefix: str) -> Iterator[dict[str, Any]]:
    threads = {category: i for i, category in enumerate(_categories(lane))}
    yield _metadata("process_name", number, name=prefix + ", ".join(lane.devices))
    yield _metadata("process_sort_index", number, sort_index=number)
    yield _metadata(
        "process_labels", number, labels=f"peak {lane.peak_memory_bytes} bytes, {lane.peak_in_flight} in flight"
    )
    for category, thread in threads.items():
        yield {**_metadata("thread_name", number, name=category), "tid": thread}
    for span in lane.spans:
        yield _complete(span, number, threads[span.category])


def _categories(lane: Lane) -> list[str]:
    found = {span.category for span in lane.spans}
    return [c for c in THREADS if c in found] + sorted(found.difference(THREADS))


def _metadata(kind: str, process: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": 0, "args": arguments}


def _complete(span: Span, process: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.label,
        "cat": span.category,
        "pid": process,
        "tid": thread,
        "ts": span.start_s * MICROSECONDS_PER_SECOND,
        "dur": (span.end_s - span.start_s) * MICROSECONDS_PER_SECOND,
    }
