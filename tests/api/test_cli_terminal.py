"""Files, names, quantities and drawings of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.terminal.files import check_writable, read_text, write_text
from api.terminal.gantt import owners
from api.terminal.names import device_ranges, layer_range
from api.terminal.units import digits, gibibytes, memory, percent, seconds
from planner.errors import InputError
from planner.timeline import Span


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_keeps_permissions_and_links(tmp_path: Path) -> None:
    path, link = tmp_path / "plan.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)


def test_what_cannot_be_written_or_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        check_writable(tmp_path / "no" / "plan.json")
    with pytest.raises(InputError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_text(str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_text(str(tmp_path / "binary"))


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (["gpu0"], "gpu0"),
        (["gpu0", "gpu1", "gpu2"], "gpu0-2"),
        (["gpu0", "gpu2"], "gpu0, gpu2"),
        (["n0/gpu7", "n1/gpu0", "n1/gpu1"], "n0/gpu7, n1/gpu0-1"),
        (["a1", "b1", "c1", "c2"], "a1 .. c1-2 (4)"),
        (["lab", "old"], "lab, old"),
    ],
)
def test_device_ranges(devices: list[str], text: str) -> None:
    assert device_ranges(devices) == text


def test_layer_ranges_keep_the_ends_of_long_names() -> None:
    assert layer_range(["a"]) == "a"
    assert layer_range(["a", "b", "c"]) == "a .. c (3)"
    assert layer_range(["model.embed_tokens", "model.layers.12"]) == "model.embed_tokens ..\nmodel.layers.12 (2)"
    assert layer_range(["x" * 50 + "12"]) == ".." + "x" * 24 + "12"


def test_quantities() -> None:
    assert [seconds(s) for s in (32.787, 0.0123456, 2.5e-6, 0.0)] == ["32.79 s", "12.35 ms", "2.500 us", "0 us"]
    assert [digits(x) for x in (0, 0.12345, 12345.6, -2.0)] == ["0", "0.1235", "12,346", "-2.000"]
    assert [digits(x) for x in (0.00123, 0.00001)] == ["0.0012", "<0.0001"]
    assert [percent(x) for x in (0.0, 0.00123, 0.456)] == ["0.0 %", "0.12 %", "45.6 %"]
    assert (memory(2**29), memory(3 * 2**30), gibibytes(2**29)) == ("512.0 MiB", "3.00 GiB", "0.500")


def span(label: str, start: float, end: float) -> Span:
    return Span(label=label, category="compute", start_s=start, end_s=end)


def test_the_longest_span_of_a_cell_is_drawn() -> None:
    spans = (span("0F0", 0.0, 1.0), span("0F1", 1.0, 1.2), span("0B0", 1.2, 2.0))
    assert [s and s.label for s in owners(spans, 4.0, 4)] == ["0F0", "0B0", None, None]
    assert owners((), 0.0, 3) == [None] * 3


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=30), st.integers(1, 200))
def test_a_busy_lane_has_no_idle_cell_and_spans_stay_in_order(lengths: list[float], cells: int) -> None:
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    spans = tuple(span(str(i), end - lengths[i], end) for i, end in enumerate(ends))
    drawn = owners(spans, ends[-1], cells)
    assert None not in drawn
    numbers = [int(s.label) for s in drawn if s is not None]
    assert numbers == sorted(numbers)
