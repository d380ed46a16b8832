"""Wide layered graphs, too wide for exact methods: how far apart are plans and bounds?"""

from __future__ import annotations

import random

from planner.ideals import Groups, set_of
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass

SPREAD = 0.6
SKIP_SHARE = 0.15
CROSS_SHARE = 0.10


def wide_graph(num_layers: int, width: int, kind: str, rho: float, seed: int, num_stages: int) -> BottleneckInstance:
    rng = random.Random(f"{num_layers} {width} {kind} {rho} {seed}")
    ends = _branches(rng, num_layers, width) if kind == "branch" else _layered(rng, num_layers, width)
    work = [rng.lognormvariate(0.0, SPREAD) for _ in range(num_layers)]
    cuts = tuple(
        Cut(groups=set_of((g, *readers)), cost_s=rho * rng.lognormvariate(0.0, SPREAD))
        for g, readers in enumerate(ends)
        if readers
    )
    return BottleneckInstance(
        groups=_groups(ends),
        cuts=cuts,
        classes=(DeviceClass(count=num_stages, work_s=work, size_bytes=[0] * num_layers, limit_bytes=0),),
    )


def _layered(rng: random.Random, num_layers: int, width: int) -> list[list[int]]:
    """Per layer its readers: 1 to 3 predecessors in the row before, with 15 % skips to older rows."""
    readers: list[set[int]] = [set() for _ in range(num_layers)]
    for layer in range(width, num_layers):
        row = layer // width
        for _ in range(rng.randint(1, 3)):
            before = row - 1
            if row > 1 and rng.random() < SKIP_SHARE:
                before = rng.randrange(max(0, row - 4), row - 1)
            readers[before * width + rng.randrange(width)].add(layer)
    return [sorted(found) for found in readers]


def _branches(rng: random.Random, num_layers: int, width: int) -> list[list[int]]:
    """Parallel chains with cross edges of 10 % of the layers."""
    readers: list[set[int]] = [set() for _ in range(num_layers)]
    for layer in range(width, num_layers):
        readers[layer - width].add(layer)
        if rng.random() < CROSS_SHARE:
            readers[(layer // width - 1) * width + rng.randrange(width)].add(layer)
    return [sorted(found) for found in readers]


def _groups(readers: list[list[int]]) -> Groups:
    before = [0] * len(readers)
    for layer, found in enumerate(readers):
        for other in found:
            before[other] |= 1 << layer
    return Groups(
        layers=tuple((layer,) for layer in range(len(readers))),
        of_layer=tuple(range(len(readers))),
        before=tuple(before),
        after=tuple(set_of(found) for found in readers),
    )
