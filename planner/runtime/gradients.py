"""Gradients across ranks: averaged over a stage's replicas, summed over the stages that hold the same parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from planner.grid import Grid


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


def buckets(stages: Sequence[nn.Module], own: int, grid: Grid) -> list[Bucket]:
    """The buckets of a rank of stage `own`: collective, all ranks must call it with the same stages.

    Every rank makes every group (torch demands that), in the order of the sorted sets of holding stages, and all
    members of a group list its parameters in the same order.
    """
    held_by = holders(stages)
    made = []
    for numbers in sorted(set(held_by.values())):
        ranks = [grid.rank(stage, replica) for stage in numbers for replica in range(grid.num_replicas)]
        if len(ranks) == 1:
            continue
        group = dist.new_group(ranks)
        if own in numbers:
            here = {id(p): p for p in stages[own].parameters()}
            made.append(Bucket(parameters=tuple(here[key] for key in held_by if held_by[key] == numbers), group=group))
    return made


def reduce_gradients(made: Iterable[Bucket], num_replicas: int) -> None:
    """Every gradient becomes its sum over the holding stages and its mean over the replicas.

    One all-reduce per bucket, over all its gradients in one flat tensor per dtype. A parameter without a gradient here
    counts as zero: another stage may have one.
    """
    for bucket in made:
        for dtype in sorted({p.dtype for p in bucket.parameters}, key=str):
            _reduce([p for p in bucket.parameters if p.dtype == dtype], bucket.group, num_replicas)


def _reduce(parameters: list[nn.Parameter], group: dist.ProcessGroup, num_replicas: int) -> None:
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    flat.div_(num_replicas)
    pieces = torch.split(flat, [p.numel() for p in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)
