"""The load of a stage by its definition: how every partition that a search reports is valued."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.ideals import bits
from planner.partition.instance import BottleneckInstance

Stages = tuple[tuple[int, int], ...]
"""In order: number of the device class, groups as a bitset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A partition and the largest of its loads in seconds.

    `finished` is False when a limit ended the search that returned it.
    """

    value_s: float
    stages: Stages
    finished: bool = True


def load_s(instance: BottleneckInstance, c: int, stage: int) -> float:
    """Seconds of a stage on class c; infinite where it cannot run all groups."""
    entry = instance.classes[c]
    work = math.fsum(entry.work_s[g] for g in bits(stage)) + entry.overhead_s
    if not entry.pays:
        return work
    return work + math.fsum(cut.cost_s for cut in instance.cuts if cut.groups & stage and cut.groups & ~stage)


def held_bytes(instance: BottleneckInstance, c: int, before: int, stage: int) -> int:
    """Bytes of a stage on class c, with its buffers; `before` are the groups of earlier stages.

    A tensor comes from an earlier stage exactly if some of its groups are there: its maker precedes its readers.
    """
    size = sum(instance.classes[c].size_bytes[g] for g in bits(stage))
    for cut in instance.cuts:
        if cut.groups & stage and cut.groups & ~stage:
            size += cut.received_bytes if cut.groups & before else cut.returned_bytes
    return size


def fits(instance: BottleneckInstance, stages: Stages) -> bool:
    """Whether every stage stays within the memory of its class."""
    before = 0
    for c, stage in stages:
        if held_bytes(instance, c, before, stage) > instance.classes[c].limit_bytes:
            return False
        before |= stage
    return True


def valued(instance: BottleneckInstance, stages: Sequence[tuple[int, int]], *, finished: bool = True) -> Bottleneck:
    """The partition with its value."""
    value = max((load_s(instance, c, stage) for c, stage in stages), default=0.0)
    return Bottleneck(value_s=value, stages=tuple(stages), finished=finished)
