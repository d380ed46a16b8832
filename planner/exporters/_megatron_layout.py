"""The layout string of Megatron-LM's `--pipeline-model-parallel-layout`.

    layout   one chunk after the other, `|` between them; chunk k is on pipeline rank k mod PP
    E t m L  embedding, decoder layer, multi-token prediction, loss
    x*n      x n times, x one letter or `|`
    (...)*n  the same for several letters; not nested
    ,        ignored

Source: NVIDIA/Megatron-LM, docs/user-guide/features/pipeline_parallel_layout.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from planner.errors import InputError

LETTERS = "EtmL"
WRITTEN_OUT = 2
"""Up to so many equal letters are written out."""
MAX_LETTERS = 100_000
_ITEM = re.compile(r"\(([EtmL|*\d]+)\)\*(\d{1,6})|([EtmL|])(?:\*(\d{1,6}))?")


def read_layout(text: str) -> tuple[str, ...]:
    """The chunks of a layout, each as its letters; an empty chunk is an empty text. InputError names the place."""
    expanded = _expanded(re.sub(r"[,\s]", "", text))
    return tuple(expanded.split("|"))


def write_layout(chunks: Sequence[str]) -> str:
    """The shortest form that needs no nesting: equal letters and equal chunks are counted."""
    pieces = [_letters(chunk) + "|" for chunk in chunks[:-1]] + [_letters(chunks[-1])]
    runs = ((piece, len(list(same))) for piece, same in groupby(pieces))
    return "".join(piece if count == 1 else f"({piece})*{count}" for piece, count in runs)


def layout_faults(chunks: Sequence[str], *, pipeline_size: int, virtual: int, num_layers: int, mtp: int) -> list[str]:
    """What keeps Megatron from running the layout, in words; empty where it can."""
    letters, faults = "".join(chunks), list[str]()
    wanted = pipeline_size * virtual
    if len(chunks) != wanted:
        faults.append(f"{len(chunks)} chunks instead of {wanted}")
    for letter, name, count in (("t", "decoders", num_layers), ("m", "multi-token predictions", mtp)):
        if letters.count(letter) != count:
            faults.append(f"{letters.count(letter)} {name} instead of {count}")
    if not re.fullmatch(r"E[tm]*L", letters):
        faults.append("it must start with the only E and end with the only L")
    if re.search(r"m.*t", letters):
        faults.append("a decoder stands after a multi-token prediction")
    return [*faults, *_misplaced(chunks, pipeline_size)]


def decoders_per_rank(chunks: Sequence[str], pipeline_size: int) -> list[int]:
    """How many decoder layers every pipeline rank holds, in all of its chunks."""
    return [sum(chunk.count("t") for chunk in chunks[rank::pipeline_size]) for rank in range(pipeline_size)]


def _misplaced(chunks: Sequence[str], pipeline_size: int) -> list[str]:
    """Multi-token prediction is in one chunk, the last one of its rank."""
    places = [number for number, chunk in enumerate(chunks) if "m" in chunk]
    if len(places) > 1:
        return [f"multi-token prediction is in the chunks {', '.join(map(str, places))}: it must be in one"]
    if any(place < len(chunks) - pipeline_size for place in places):
        return [f"multi-token prediction is in chunk {places[0]}, which is not the last one of its rank"]
    return []


def _expanded(text: str) -> str:
    """Letters and bars alone."""
    pieces, at, size = list[str](), 0, 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            raise InputError(
                f"the layout {text[:80]!r} cannot be read at {text[at : at + 8]!r}: write {', '.join(LETTERS)} and | "
                "with counts, as in Et*3|(tt|)*29L; parentheses cannot be nested"
            )
        inside = item[3] if item[1] is None else _expanded(item[1])
        count = int(item[2] or item[4] or "1")
        size += count * len(inside)
        if size > MAX_LETTERS:
            raise InputError(f"the layout {text[:80]!r} has more than {MAX_LETTERS} letters: use smaller counts")
        pieces.append(inside * count)
        at = item.end()
    return "".join(pieces)


def _letters(chunk: str) -> str:
    runs = ((letter, len(list(same))) for letter, same in groupby(chunk))
    return "".join(letter * count if count <= WRITTEN_OUT else f"{letter}*{count}" for letter, count in runs)
