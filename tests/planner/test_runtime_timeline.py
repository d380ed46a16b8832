"""A measured timeline beside the simulated one, as a Chrome trace."""

from __future__ import annotations

from planner.exporters.chrome_trace import trace_document
from planner.timeline import Lane, Span, Timeline


def timeline(device: str, category: str, end_s: float) -> Timeline:
    """One lane with one span from 0 to `end_s`."""
    span = Span(label="0F0", category=category, start_s=0.0, end_s=end_s)
    lane = Lane(devices=(device,), spans=(span,), busy_s=end_s, peak_memory_bytes=1, peak_in_flight=1)
    return Timeline(lanes=(lane,), makespan_s=end_s, bubble_fraction=0.0)


def test_measured_lanes_follow_the_simulated_ones() -> None:
    document = trace_document(timeline("a", "compute", 1.0), timeline("a", "compute", 2.0))
    events = document["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "a", 1: "measured a"}
    assert [(event["pid"], event["dur"]) for event in events if event["ph"] == "X"] == [(0, 1e6), (1, 2e6)]
    assert document["otherData"]["measured_makespan_s"] == 2.0


def test_without_a_measured_one_nothing_is_added() -> None:
    document = trace_document(timeline("a", "compute", 1.0))
    assert {event["pid"] for event in document["traceEvents"]} == {0}
    assert "measured_makespan_s" not in document["otherData"]
