"""A device-placement file after folding: what becomes layers and tensors."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.importers._placement_file import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedNode:
    """A node that becomes a layer, with the backward nodes that were folded into it.

    A backward node without forward nodes in its class becomes a layer itself: `forward` is that node then.
    """

    forward: Node
    backward: tuple[Node, ...] = ()

    @property
    def all(self) -> tuple[Node, ...]:
        """All nodes of the layer."""
        return (self.forward, *self.backward)

    @property
    def size(self) -> float:
        """Bytes of all of them."""
        return sum(node.size for node in self.all)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedArc:
    """A tensor (of `source`, named) between layers, by node ids: milliseconds of all that it moves.

    `both_ways`: half of it moves forward and half of it back, as a gradient.
    """

    source: int
    target: int
    cost: float
    tensor: str = "output"
    both_ways: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Layers and tensors. `colocated` are sets of node ids; `trains` says whether there are backward nodes at all.

    `mirrored` says that each tensor has a gradient of its own cost; otherwise only those do that are `both_ways`.
    """

    nodes: tuple[FoldedNode, ...]
    arcs: tuple[FoldedArc, ...]
    colocated: tuple[tuple[int, ...], ...]
    trains: bool
    mirrored: bool = True
