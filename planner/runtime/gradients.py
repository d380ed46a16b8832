"""Gradients across ranks: over a stage's replicas, and over the stages that hold the same parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from planner.runtime.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Parameters of one rank whose gradients the same ranks hold, and the group of these ranks."""

    parameters: tuple[nn.Parameter, ...]
    group: dist.ProcessGroup


def holders(stages: Sequence[nn.Module]) -> dict[int, tuple[int, ...]]:
    """Identity of each trainable parameter -> the stages that hold it: several for tied parameters."""
    found: dict[int, list[int]] = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters():
            if parameter.requires_grad:
                found.setdefault(id(parameter), []).append(number)
    return {key: tuple(numbers) for key, numbers in found.items()}


def buckets(
    stages: Sequence[nn.Module], rank: int, layout: Layout, apart: AbstractSet[int] = frozenset()
) -> list[Bucket]:
    """The buckets of process `rank`: collective, all ranks must call it with the same stages.

    Every rank makes every group (torch demands that), in the order of the sorted sets of holding ranks, and all
    members of a group list its parameters in the same order. Stages on one rank add to one gradient there. Parameters
    whose identity is in `apart` are left out.
    """
    held_by = {
        key: tuple(sorted({rank for stage in numbers for rank in layout.ranks_of(stage)}))
        for key, numbers in holders(stages).items()
        if key not in apart
    }
    by_identity = {id(parameter): parameter for stage in stages for parameter in stage.parameters()}
    made = []
    for ranks in sorted(set(held_by.values())):
        if len(ranks) == 1:
            continue
        group = dist.new_group(list(ranks))
        if rank in ranks:
            own = tuple(by_identity[key] for key, holding in held_by.items() if holding == ranks)
            made.append(Bucket(parameters=own, group=group))
    return made


def reduce_gradients(made: Iterable[Bucket], divisor: int) -> None:
    """Every gradient becomes its sum over the holding ranks divided by `divisor`.

    That is the number of replicas where each has the mean over its own samples, 1 where each has its part of the global
    mean. One all-reduce per bucket, over all its gradients in one flat tensor per dtype. A parameter without a gradient
    here counts as zero: another stage may have one.
    """
    for bucket in made:
        for dtype in sorted({_dtype(p) for p in bucket.parameters}, key=str):
            _reduce([p for p in bucket.parameters if _dtype(p) == dtype], bucket.group, divisor)


def _reduce(parameters: list[nn.Parameter], group: dist.ProcessGroup, divisor: int) -> None:
    gradients = [torch.zeros_like(p, dtype=_dtype(p)) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    if divisor != 1:
        flat.div_(divisor)
    pieces = torch.split(flat, [p.numel() for p in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)


def _dtype(parameter: nn.Parameter) -> torch.dtype:
    """That of its gradient."""
    return parameter.grad_dtype or parameter.dtype
