"""Sizes and rates as text."""

import pytest

from planner.errors import InputError
from profiles.quantities import parse_bytes, parse_rate, plain


@pytest.mark.parametrize(
    ("text", "value"), [("80GiB", 80 * 2**30), ("1.5 kB", 1500), ("7B", 7), ("0.0000001MB", 0), ("2e3B", 2000)]
)
def test_sizes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(("text", "value"), [("25GB/s", 25e9), ("200Gbit/s", 25e9), ("1GiB/s", 2.0**30)])
def test_rates(text, value):
    assert parse_rate(text) == value


@pytest.mark.parametrize("text", ["", "80", "GiB", "80 gib", "-1GiB", "1e999B", "nanB", "0x10B", "1" * 100 + "B"])
def test_other_text_is_refused(text):
    with pytest.raises(InputError):
        parse_bytes(text)


def test_plain_converts_by_the_name_of_the_key():
    values = {"memory_bytes": "1kB", "rows": [{"bandwidth_bytes_per_s": "1kB/s", "name_bytes": 3}], "id": "5GiB"}
    assert plain(values) == {
        "memory_bytes": 1000,
        "rows": [{"bandwidth_bytes_per_s": 1000.0, "name_bytes": 3}],
        "id": "5GiB",
    }
