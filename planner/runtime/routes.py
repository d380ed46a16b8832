"""Which pieces of which tensors go from process to process, for our own executor.

A tensor goes from the stage that makes it straight to every stage that reads it, whichever stages lie in between.
Replicas of the two stages may have different samples of a microbatch: each pair exchanges the samples that both have.
Gradients go the same ways back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.runtime.layout import Layout


@dataclass(frozen=True, slots=True)
class Way:
    """Tensor `name`, made by stage `source` and read by stage `target`. `number` counts the ways of a plan."""

    number: int
    name: str
    source: int
    target: int

    def other(self, stage: int) -> int:
        """The stage at the other end."""
        return self.source if stage == self.target else self.target


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of what a process sends or receives: `samples` of its own ones (from 0), to or from process `peer`."""

    peer: int
    samples: range


@dataclass(frozen=True, slots=True)
class Routes:
    """All ways of a plan, and the pieces in which they are travelled."""

    layout: Layout
    ways: tuple[Way, ...]

    def into(self, stage: int) -> tuple[Way, ...]:
        """The ways that end at a stage, in the order of its inputs."""
        return tuple(way for way in self.ways if way.target == stage)

    def out_of(self, stage: int) -> tuple[Way, ...]:
        """The ways that start at a stage, tensor by tensor, the first reader first."""
        return tuple(way for way in self.ways if way.source == stage)

    def pieces(self, way: Way, stage: int, replica: int, microbatch: int) -> tuple[Piece, ...]:
        """What a replica of `stage` (one end of the way) exchanges with the replicas at the other end."""
        layout, other = self.layout, way.other(stage)
        mine = layout.samples(stage, replica, microbatch)
        found = []
        for peer in range(layout.num_replicas(other)):
            theirs = layout.samples(other, peer, microbatch)
            start, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
            if start < stop:
                found.append(Piece(layout.rank(other, peer), range(start - mine.start, stop - mine.start)))
        return tuple(found)

    def tag(self, way: Way, microbatch: int, backward: bool) -> int:
        """A number that no other message between the same two processes has in the same step."""
        return 2 * (way.number * self.layout.num_microbatches + microbatch) + backward


def routes_of(layout: Layout, made: Sequence[Sequence[str]], read: Sequence[Sequence[str]]) -> Routes:
    """The ways of stages that make and read the tensors of these names; the model's own inputs are in no `made`."""
    source: Mapping[str, int] = {name: stage for stage, names in enumerate(made) for name in names}
    pairs = [(name, stage) for stage, names in enumerate(read) for name in names if name in source]
    return Routes(layout, tuple(Way(i, name, source[name], stage) for i, (name, stage) in enumerate(pairs)))
