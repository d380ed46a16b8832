"""Stages of transformer engines, which count blocks, as layers of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.blocks import Blocks, blocks_of
from planner.errors import InputError
from planner.exporters._megatron_layout import MAX_LETTERS
from planner.exporters.megatron import MULTI_TOKEN
from planner.graph import GraphIndex


def stages_of(letters: Sequence[str], index: GraphIndex) -> tuple[tuple[str, ...], ...]:
    """The layers of every stage, of which each is given in Megatron's letters: `Ett`, `t`, `tL`.

    Letters that the graph has no layers for (E and L of a model that is its blocks alone) stand for nothing. InputError
    where the numbers of blocks differ.
    """
    found = blocks_of(index)
    layers = _layers_of(found)
    check_count(sum(chunk.count("t") for chunk in letters), len(found.blocks), "decoder layers")
    check_count(sum(chunk.count("m") for chunk in letters), len(layers["m"]), "multi-token predictions")
    waiting = {letter: iter(names) for letter, names in layers.items()}
    return tuple(tuple(name for letter in chunk for name in _next(letter, waiting, layers)) for chunk in letters)


def counted(counts: Sequence[int]) -> list[str]:
    """The letters of stages that are given by their numbers of blocks: ends of the model with the outer ones."""
    if sum(counts) > MAX_LETTERS or min(counts) < 0:
        raise InputError(f"the layout has stages of {min(counts)} to {max(counts)} blocks: give each between 0 and all")
    chunks = ["t" * count for count in counts]
    chunks[0] = "E" + chunks[0]
    chunks[-1] += "L"
    return chunks


def check_count(said: int, wanted: int, what: str) -> None:
    """InputError where the layout is about another model."""
    if said != wanted:
        raise InputError(
            f"the layout has {said} {what}, the model has {wanted}: give the layout of this model",
            pointer="/graph/layers",
        )


def _layers_of(found: Blocks) -> dict[str, tuple[str, ...]]:
    predictions = tuple(name for name in found.after if MULTI_TOKEN in name)
    end = tuple(name for name in found.after if name not in predictions)
    return {"E": found.before, "t": found.blocks, "m": predictions, "L": end}


def _next(letter: str, waiting: dict[str, Iterator[str]], layers: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """One block or prediction, or all that comes before or after the blocks."""
    if letter in "EL":
        return layers[letter]
    return (next(waiting[letter]),)
