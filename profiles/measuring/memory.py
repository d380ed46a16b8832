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

from planner.runtime.program import LOSS_LAYER, TracedProgram
from planner.runtime.split import output_name
from profiles.measuring.chain import LayerChain, Phase
from profiles.tracing.collectives import divided_nodes


class Makers:
    """Watcher of a chain: which operator made a storage last, and which one is running."""

    def __init__(self) -> None:
        self.running = ""
        self._of: dict[int, str] = {}

    def __call__(self, name: str, result: object) -> None:
        self.running = name
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                key = _storage_key(tensor)
                if key not in self._of:
                    weakref.finalize(tensor.untyped_storage(), self._of.pop, key, None).atexit = False
                self._of[key] = name

    def of(self, tensor: torch.Tensor) -> str:
        """The operator that made the tensor; what an operator keeps of its own inside is its own."""
        return self._of.get(_storage_key(tensor), self.running)


class KeptBytes:
    """Observer: bytes that each layer keeps for its backward pass.

    Every storage counts once in a chain, for the first layer that keeps it; parameters, buffers and constants count
    for none. The sum over the layers is what an unpartitioned forward pass keeps. `bytes_by` has them by the operator
    that made them, where the chain's watcher is given.
    """

    def __init__(self, chain: LayerChain, makers: Makers | None = None) -> None:
        module = chain.program.module
        excluded: Iterable[torch.Tensor] = (*module.parameters(), *module.buffers(), *chain.constants.values())
        self._seen = {_storage_key(t) for t in excluded}
        self._alive: list[torch.Tensor] = []  # keeps storages alive, so that their keys stay unique
        self._makers = makers
        self.bytes_of: dict[str, int] = defaultdict(int)
        self.bytes_by: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

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
            size = tensor.untyped_storage().nbytes()
            self.bytes_of[layer] += size
            if self._makers is not None:
                self.bytes_by[layer][self._makers.of(tensor)] += size


def whole_bytes(kept: KeptBytes, program: TracedProgram, layer: str) -> int:
    """The kept bytes that a tensor-parallel group divides only with sequence parallelism.

    They are what it does not divide by its products: norms, dropouts, the inputs of column-parallel products. The loss
    follows the model's output.
    """
    divided = divided_nodes(program.module, program.layer_of_node)
    if layer == LOSS_LAYER:
        return 0 if output_name(program) in divided else kept.bytes_of[layer]
    return sum(size for name, size in kept.bytes_by[layer].items() if name not in divided)


class PeakBytes:
    """Observer: the most bytes alive at once of tensors that a step makes and that are gone when it ends.

    Per layer the larger of both passes: memory that the layer needs only while it runs. What remains (outputs, kept
    tensors, gradients) is none of it; the gradient of a parameter is if it is added to an existing one.
    """

    def __init__(self) -> None:
        self.bytes_of: dict[str, int] = defaultdict(int)

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        with _Storages() as storages:
            yield
        self.bytes_of[layer] = max(self.bytes_of[layer], storages.peak_of_temporaries())


class WeightPassBytes:
    """Observer of a split chain: bytes that a layer's weight gradients give back beyond what its forward pass kept.

    They are gradients that the input-gradient passes (or the loss) left: of the outputs of the layer's weighted
    operators. A layer counts when the next one begins, with all that it has let go by then. Layers without an
    input-gradient pass are missing; the last one of a chain is always such.
    """

    def __init__(self) -> None:
        self.bytes_of: dict[str, int] = {}
        self._left: list[_Storages] = []
        self._split: set[str] = set()
        self._running: tuple[str, int] | None = None

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        if phase is Phase.BACKWARD_WEIGHT:
            self._begin(layer)
        if phase in (Phase.FORWARD, Phase.BACKWARD_WEIGHT):
            yield
            return
        if phase is Phase.BACKWARD_INPUT:
            self._split.add(layer)
        with _Storages() as storages:
            yield
        self._left.append(storages)

    def _begin(self, layer: str) -> None:
        held = sum(storages.alive_bytes() for storages in self._left)
        if self._running is not None and self._running[0] in self._split:
            before, held_before = self._running
            self.bytes_of[before] = held_before - held
        self._running = layer, held


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes when operators make storages and when these die."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, int] = {}  # storage key -> its number
        self._sizes: list[int] = []
        self._events: list[tuple[int, int]] = []  # (number, +1 made or -1 died)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _storage_key(tensor) not in given | self._alive.keys():
                self._note(tensor.untyped_storage())
        return result

    def alive_bytes(self) -> int:
        """Of those that are alive by now."""
        return sum(self._sizes[number] for number in self._alive.values())

    def peak_of_temporaries(self) -> int:
        """The largest sum of those that have died by now."""
        dead = {number for number, change in self._events if change < 0}
        now = peak = 0
        for number, change in self._events:
            if number in dead:
                now += change * self._sizes[number]
                peak = max(peak, now)
        return peak

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, number = int(storage._cdata), len(self._sizes)
        self._alive[key] = number
        self._sizes.append(storage.nbytes())
        self._events.append((number, +1))
        weakref.finalize(storage, self._died, key, number).atexit = False

    def _died(self, key: int, number: int) -> None:
        self._alive.pop(key, None)
        self._events.append((number, -1))


def _storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
