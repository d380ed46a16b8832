"""Bytes per layer: what autograd keeps from the forward to the backward pass, and the most that is alive meanwhile.

Works on real and fake tensors alike: both observers look at storages, not at an allocator. Scratch memory that
kernels allocate inside is not seen.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiles.measuring.chain import LayerChain, Phase


class KeptBytes:
    """Observer: bytes that each layer keeps for its backward pass.

    Every storage counts once in a chain, for the first layer that keeps it; parameters, buffers and constants count
    for none. The sum over the layers is what an unpartitioned forward pass keeps.
    """

    def __init__(self, chain: LayerChain) -> None:
        module = chain.program.module
        excluded: Iterable[torch.Tensor] = (*module.parameters(), *module.buffers(), *chain.constants.values())
        self._seen = {_storage_key(t) for t in excluded}
        self._alive: list[torch.Tensor] = []  # keeps storages alive, so that their keys stay unique
        self.bytes_of: dict[str, int] = defaultdict(int)

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        if phase is Phase.BACKWARD:
            yield
            return

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self._count(layer, tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def _count(self, layer: str, tensor: torch.Tensor) -> None:
        key = _storage_key(tensor)
        if key not in self._seen:
            self._seen.add(key)
            self._alive.append(tensor.detach())
            self.bytes_of[layer] += tensor.untyped_storage().nbytes()


class PeakBytes:
    """Observer: the most bytes that were alive over those at the start of a step, less those that remained.

    Per layer the larger of both passes: memory that the layer needs only while it runs. Gradients of parameters are
    left out if they existed before, as in every chain but the first.
    """

    def __init__(self) -> None:
        self.bytes_of: dict[str, int] = defaultdict(int)

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        with _LiveStorages() as live:
            yield
        self.bytes_of[layer] = max(self.bytes_of[layer], live.peak - max(live.now, 0))


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages that operators make: bytes alive now and at most, relative to the start."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _storage_key(tensor) not in given | self._known:
                self._enter(tensor.untyped_storage())
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._leave, key, size)

    def _leave(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
