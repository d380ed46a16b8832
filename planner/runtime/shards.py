"""ZeRO: what the replicas of a stage divide among themselves (Rajbhandari et al. 2020), parameter by parameter.

Replica k of r has the k-th of r equal parts of the values of each parameter: of its optimizer state (ZeRO 1), of its
gradient too (2), of its weights too (3). Gradients are reduced and scattered, weights gathered.

PyTorch's own classes do not fit here. `ZeroRedundancyOptimizer` divides by whole parameters and keeps no master
weights. `fully_shard` (it runs on gloo) replaces the parameters, which stages, layers and the model share here, by
others of its own, and with a split backward pass the gradients stay whole until the last microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from planner.plan import Plan, Stage
from planner.runtime.layout import Layout

GRADIENTS, WEIGHTS = 2, 3
"""The ZeRO stages from which on gradients and weights are divided too."""
Levels = dict[tuple[int, int], int]
"""Device group and identity of a parameter -> ZeRO stage of that parameter there."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The processes of a stage's replicas, among which this one is number `index`; `alone` means that nobody is there.

    Parts go straight from process to process and are added up in the order of the replicas. Gloo's own collectives add
    in an order of theirs, and copy: what their threads free, no memory profile of this thread sees.
    """

    ranks: tuple[int, ...]
    index: int
    alone: bool

    def gather(self, own: torch.Tensor, into: torch.Tensor, tag: int) -> list[dist.Work]:
        """Equal parts of all, one after the other, when the works are done. Collective."""
        parts = into.view(len(self.ranks), -1)
        if self.alone:
            parts.copy_(own)
            return []
        parts[self.index] = own
        return self._exchange([own] * len(parts), list(parts), tag)

    def scatter(self, whole: torch.Tensor, tag: int) -> torch.Tensor:
        """The own one of the equal parts of the sum over all. Collective."""
        parts: list[torch.Tensor] = list(whole.view(len(self.ranks), -1))
        if self.alone:
            return parts[self.index].clone()
        received = [part if number == self.index else torch.empty_like(part) for number, part in enumerate(parts)]
        for work in self._exchange(parts, received, tag):
            work.wait()
        total: torch.Tensor = received[0].clone() if self.index == 0 else received[0]
        for part in received[1:]:
            total += part
        return total

    def _exchange(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor], tag: int) -> list[dist.Work]:
        """Item k of `sent` goes to replica k, whose item for this one comes into item k of `received`.

        Sends are posted first: a rank shares its core with gloo's thread, and so it takes 2 instead of 3 ms.
        """
        others = [number for number in range(len(self.ranks)) if number != self.index]
        works = [dist.isend(sent[number], dst=self.ranks[number], tag=tag) for number in others]
        works += [dist.irecv(received[number], src=self.ranks[number], tag=tag) for number in others]
        return [work for work in works if work is not None]


@dataclass(slots=True)
class Shard:
    """One parameter's division among `peers`, which all call it `number`.

    `tied`: other device groups hold the parameter too, so that its gradient is summed whole, before it is divided.
    `piece` are the own weights where weights are divided, `gradient` is the own part of the summed gradient.
    """

    parameter: nn.Parameter
    number: int
    level: int
    peers: Peers
    tied: bool
    piece: torch.Tensor | None = None
    gradient: torch.Tensor | None = None
    _size: int = field(init=False)

    def __post_init__(self) -> None:
        self._size = -(-self.parameter.numel() // len(self.peers.ranks))
        self.parameter.data = self.parameter.data.clone(memory_format=torch.contiguous_format)  # of its own storage
        if self.level >= WEIGHTS:
            self.piece = self.own(self.parameter.data).clone()

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """The own part of a tensor of the parameter's shape, as a view: the last parts may be shorter, or empty."""
        start = self.peers.index * self._size
        return whole.reshape(-1)[start : start + self._size]

    def whole(self, own: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
        """A tensor of the parameter's shape from the own parts of all. Collective."""
        padded = self._size * len(self.peers.ranks)
        even = padded == self.parameter.numel()
        made = into.view(-1) if into is not None and even else own.new_empty(padded)
        for work in self.peers.gather(_padded(own, self._size), made, self.number):
            work.wait()
        found = made[: self.parameter.numel()].view(self.parameter.shape)
        return found if into is None or even else into.copy_(found)

    def scatter(self) -> None:
        """Add the own part of the replicas' gradients, and let the parameter's go. Collective."""
        gradient = self.parameter.grad
        if gradient is None:
            return
        mine = self.peers.scatter(_padded(gradient.reshape(-1), self._size * len(self.peers.ranks)), self.number)
        mine = mine[: self.own(self.parameter).numel()]
        self.gradient = mine if self.gradient is None else self.gradient.add_(mine)
        self.parameter.grad = None

    def after_backward(self, parameter: torch.Tensor) -> None:
        """Autograd's hook: `scatter` as soon as the gradient of a pass is there, so that few are whole at a time."""
        self.scatter()

    def settle(self) -> None:
        """At the end of a step: the own gradient is complete; zero where the loss does not depend on it. Collective."""
        if self.parameter.grad is None and self.gradient is None:
            dtype = self.parameter.grad_dtype or self.parameter.dtype
            self.parameter.grad = torch.zeros(self.parameter.shape, dtype=dtype, device=self.parameter.device)
        if not self.tied:
            self.scatter()
        elif self.parameter.grad is not None:
            self.gradient, self.parameter.grad = self.own(self.parameter.grad).clone(), None

    def start_gathering(self) -> Callable[[], None]:
        """Begin to have the whole weights, where they are divided and not there; to be called when they are needed."""
        storage, piece = self.parameter.untyped_storage(), self.piece
        if piece is None or storage.nbytes():
            return _nothing
        storage.resize_(self.parameter.numel() * self.parameter.element_size())
        padded, flat = self._size * len(self.peers.ranks), self.parameter.data.view(-1)
        made = flat if padded == len(flat) else piece.new_empty(padded)
        works = self.peers.gather(_padded(piece, self._size), made, self.number)

        def finish() -> None:
            for work in works:
                work.wait()
            if made is not flat:
                flat.copy_(made[: len(flat)])

        return finish

    def release(self) -> None:
        """Keep the own weights alone, where they are divided."""
        if self.piece is not None:
            self.parameter.untyped_storage().resize_(0)


def gather(shards: Iterable[Shard]) -> None:
    """Have the whole weights of all of these, in one go. Collective, where they are not there already."""
    for finish in [shard.start_gathering() for shard in shards]:
        finish()


def _nothing() -> None:
    """Nothing to wait for."""


class Shards:
    """The divided parameters of one process."""

    def __init__(self, shards: Iterable[Shard] = ()) -> None:
        self._of = {id(shard.parameter): shard for shard in shards}
        for shard in self.all():
            if shard.level >= GRADIENTS and not shard.tied and shard.parameter.requires_grad:
                shard.parameter.register_post_accumulate_grad_hook(shard.after_backward)  # type: ignore[no-untyped-call]

    def all(self) -> list[Shard]:
        """In the order of the stages."""
        return list(self._of.values())

    def of(self, tensor: torch.Tensor) -> Shard | None:
        """That of a parameter; None where it is not divided."""
        return self._of.get(id(tensor))

    def among(self, parameters: Iterable[nn.Parameter]) -> list[Shard]:
        """Those of these parameters, each once."""
        return [shard for key in dict.fromkeys(map(id, parameters)) if (shard := self._of.get(key)) is not None]


def zero_levels(stages: Sequence[nn.Module], plan: Plan, layout: Layout) -> Levels:
    """Which parameters are divided where: those of which every stage of a device group that holds them says so.

    The least ZeRO stage counts. `stages` are all stages of the plan.
    """
    found: Levels = {}
    for number, (stage, module) in enumerate(zip(plan.stages, stages, strict=True)):
        level = _level(stage)
        for parameter in module.parameters():
            key = (layout.group_of[number], id(parameter))
            found[key] = min(level, found.get(key, level))
    return {key: level for key, level in found.items() if level}


def summed_apart(stages: Sequence[nn.Module], levels: Levels, layout: Layout) -> set[int]:
    """Identities of the parameters whose gradients are scattered: divided ones that one device group alone holds."""
    groups: dict[int, set[int]] = {}
    for number, module in enumerate(stages):
        for parameter in module.parameters():
            groups.setdefault(id(parameter), set()).add(layout.group_of[number])
    return {key for group, key in levels if groups[key] == {group}}


def shards_of(stages: Sequence[nn.Module], plan: Plan, layout: Layout, rank: int, *, alone: bool) -> Shards:
    """The shards of process `rank`, which may act `alone`. `stages` are all stages of the plan."""
    levels = zero_levels(stages, plan, layout)
    apart = summed_apart(stages, levels, layout)
    own, index = layout.seat(rank)
    numbers = layout.stages_on(rank)
    peers = Peers(layout.ranks_of(numbers[0]), index, alone)
    parameters = {id(p): p for number in numbers for p in stages[number].parameters()}
    return Shards(
        Shard(parameter=parameter, number=number, level=levels[own, key], peers=peers, tied=key not in apart)
        for number, (key, parameter) in enumerate(parameters.items())
        if (own, key) in levels and (parameter.requires_grad or levels[own, key] >= WEIGHTS)
    )


def _level(stage: Stage) -> int:
    """What is divided in the end: nothing by one replica, and without resharding the weights are held whole."""
    if len(stage.replicas) == 1:
        return 0
    return stage.zero if stage.reshard else min(stage.zero, GRADIENTS)


def _padded(flat: torch.Tensor, size: int) -> torch.Tensor:
    return flat if flat.numel() == size else nn.functional.pad(flat, (0, size - flat.numel()))
