"""Repeated blocks: how engines for transformers see a layer graph.

A chain of what comes before the blocks (embedding), the blocks themselves (decoder layers), and what comes after them
(last norm, head, loss). Blocks are known by their ids: one name with the numbers 0, 1, 2 ... at its end, as in
`model.layers.0`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import InputError
from planner.graph import GraphIndex

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Layer ids in execution order. `before` and `after` may be empty: costs of the blocks alone."""

    before: tuple[str, ...]
    blocks: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Positions at which an engine can cut: before every block, and before what follows the last one."""
        first, last = len(self.before), len(self.before) + len(self.blocks)
        return (*range(first, last), *((last,) if self.after else ()))


def blocks_of(index: GraphIndex) -> Blocks:
    """The blocks of a graph; InputError where it is no chain, or has not one family of them. O(layers)."""
    if not index.is_chain():
        raise InputError("the layer graph is no chain of blocks: a tensor skips over a layer", pointer="/graph/edges")
    families = _families(index)
    repeated = {name: found for name, found in families.items() if len(found) > 1} or families
    if len(repeated) != 1:
        names = ", ".join(repr(name) for name in list(repeated)[:3]) or "none"
        raise InputError(
            f"the layer graph needs one family of blocks, numbered from 0 on as in 'layers.0'; it has {names}",
            pointer="/graph/layers",
        )
    places = next(iter(repeated.values()))
    ids = [layer.id for layer in index.layers]
    if places != list(range(places[0], places[-1] + 1)):
        raise InputError("other layers stand between the blocks of the layer graph", pointer="/graph/layers")
    first, end = places[0], places[-1] + 1
    return Blocks(before=tuple(ids[:first]), blocks=tuple(ids[first:end]), after=tuple(ids[end:]))


def _families(index: GraphIndex) -> dict[str, list[int]]:
    """Name without number -> positions, for names that are numbered 0, 1, 2 ... in execution order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for position, layer in enumerate(index.layers):
        if match := _NUMBERED.fullmatch(layer.id):
            found.setdefault(match[1], []).append((int(match[2]), position))
    return {
        name: [position for _, position in pairs]
        for name, pairs in found.items()
        if [number for number, _ in pairs] == list(range(len(pairs)))
    }
