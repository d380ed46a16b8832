"""Tensors between the stages of our own executor: sent as tagged messages, or handed over inside a process.

Nothing can wait in a circle but the schedule itself: sends are posted when a tensor is made, receives one action before
they are needed, and every message has a tag of its own. A sent tensor is let go when its gradient is back, which tells
that it has arrived; gradients at the end of the step (gloo says of no send that it is done, before one waits for it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from planner.errors import RunError
from planner.runtime.routes import Piece, Routes, Way

Key = tuple[int, int, bool]
"""Number of a way, microbatch, whether it is the gradient."""


@dataclass(slots=True)
class Parcel:
    """A tensor on its way in, and the receives that fill it."""

    tensor: torch.Tensor
    works: list[dist.Work]


@dataclass(slots=True)
class Mailbox:
    """What one process sends and receives in a step. `examples[name]` has shape and type of a tensor as it sees it."""

    routes: Routes
    rank: int
    replica: int
    examples: Mapping[str, torch.Tensor]
    _parcels: dict[Key, Parcel] = field(default_factory=dict)
    _sent: dict[Key, list[dist.Work]] = field(default_factory=dict)

    def post(self, ways: Iterable[Way], stage: int, microbatch: int, *, backward: bool) -> None:
        """Expect what comes over these ways to a stage. What is expected or handed over already stays as it is."""
        for way in ways:
            key = (way.number, microbatch, backward)
            if key in self._parcels or self._is_home(way):
                continue
            example = self.examples[way.name]
            tensor = torch.empty(example.shape, dtype=example.dtype)
            tag = self.routes.tag(way, microbatch, backward)
            works = [
                _checked(dist.irecv(self._rows(tensor, piece, stage), src=piece.peer, tag=tag))
                for piece in self.routes.pieces(way, stage, self.replica, microbatch)
            ]
            self._parcels[key] = Parcel(tensor, works)

    def take(self, way: Way, microbatch: int, *, backward: bool) -> torch.Tensor:
        """Wait for a tensor that was posted or handed over, and have it."""
        parcel = self._parcels.pop((way.number, microbatch, backward))
        _wait(parcel.works)
        if backward:
            _wait(self._sent.pop((way.number, microbatch, False), ()))
        return parcel.tensor

    def put(self, way: Way, stage: int, microbatch: int, tensor: torch.Tensor, *, backward: bool) -> None:
        """Send a tensor of `stage` over a way without waiting; inside the process it is handed over as it is."""
        if self._is_home(way):
            self._parcels[way.number, microbatch, backward] = Parcel(tensor, [])
            return
        tensor = tensor.contiguous()
        tag = self.routes.tag(way, microbatch, backward)
        self._sent[way.number, microbatch, backward] = [
            _checked(dist.isend(self._rows(tensor, piece, stage), dst=piece.peer, tag=tag))
            for piece in self.routes.pieces(way, stage, self.replica, microbatch)
        ]

    def flush(self) -> None:
        """Wait until everything that was sent has arrived."""
        for works in self._sent.values():
            _wait(works)
        self._sent.clear()

    def _is_home(self, way: Way) -> bool:
        group_of = self.routes.layout.group_of
        return group_of[way.source] == group_of[way.target]

    def _rows(self, tensor: torch.Tensor, piece: Piece, stage: int) -> torch.Tensor:
        """The rows of a piece: with several rows per sample (tokens in one dimension with samples), all of them."""
        size = self.routes.layout.local_size(stage)
        if len(piece.samples) == size:
            return tensor
        per_sample = tensor.shape[0] // size
        return tensor[piece.samples.start * per_sample : piece.samples.stop * per_sample]


def _wait(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()


def _checked(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise RunError("this process is not in the group that it sends to: please report this plan")
    return work
