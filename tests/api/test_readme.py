"""What the README shows is what the commands print (apart from run times of the search)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commandline import Call, call

__all__ = ["call"]
README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ pipeplan (plan llama[^\n]*)\n(.+?)```", README, re.DOTALL)
SEARCH_TIME = re.compile(r"[\d.,]+ (?:s|ms)(?=, seed)")


def lines(text: str) -> list[str]:
    """Without trailing blanks, without how long the search took, and without what is tried only while there is time."""
    told = [SEARCH_TIME.sub("T", line.rstrip()) for line in text.rstrip().splitlines()]
    ends = [number for number, line in enumerate(told) if line.startswith(("what if", "remedy"))]
    return told[: ends[0]]


@pytest.mark.parametrize(("words", "shown"), SHOWN)
def test_the_readme_shows_what_is_printed(
    words: str, shown: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert lines(call(*words.split()).out) == lines(shown)


def test_there_are_examples() -> None:
    assert len(SHOWN) == 2
