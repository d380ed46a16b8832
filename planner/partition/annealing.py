"""Simulated annealing over partitions: out of the local optima that single moves and recurrences stay in.

A move takes one group to another stage that its inputs and readers allow. Its price is the change of

    sum over stages of exp(SHARPNESS * (load / largest load - 1)),

a smooth stand-in for the largest load that also sees the second largest; the temperature falls geometrically. The best
partition on the way counts. (Kirkpatrick et al. 1983; on wide graphs the result is up to 6 % better than what the
recurrence finds over pools of orders, and the recurrence often improves on it again.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from planner.partition.loads import Bottleneck
from planner.partition.local_search import Stages

SHARPNESS = 10.0
HOT, COLD = 0.3, 0.02
"""Temperatures: of 1 is the price of a second stage as heavy as the heaviest."""
REFRESH = 512
"""Moves between looks at the clock, the temperature and the largest load."""
NEAR_SHARE = 0.7
"""Moves to a neighbouring stage; the others go anywhere."""


def anneal(
    stages: Stages,
    draw: random.Random,
    num_moves: int,
    *,
    hot: float = HOT,
    cold: float = COLD,
    expired: Callable[[], bool] = lambda: False,
) -> Bottleneck | None:
    """The best partition met in `num_moves` tried moves; None where it has no legal form. Changes `stages`.

    A partition with an infinite load is left as it is: prices of moves would be no numbers.
    """
    if not math.isfinite(max(stages.load, default=math.inf)):
        return stages.partition()
    walk = _Walk(stages, draw)
    for start in range(0, num_moves, REFRESH):
        if expired():
            break
        walk.steps(REFRESH, hot * (cold / hot) ** (start / num_moves))
    stages.restore(walk.best)
    return stages.partition()


class _Walk:
    """The stages on their way, and the best that they were."""

    def __init__(self, stages: Stages, draw: random.Random) -> None:
        self.stages, self.draw = stages, draw
        self.best, self.value = list(stages.of), max(stages.load)
        self.least = 0 if stages.instance.num_stages is None else 1
        self.size = [stages.of.count(number) for number in range(len(stages.load))]

    def steps(self, count: int, temperature: float) -> None:
        """Try so many moves at one temperature."""
        stages, uniform = self.stages, self.draw.random
        num_groups, load, scale = len(stages.of), stages.load, SHARPNESS / (max(stages.load) or 1.0)
        for _ in range(count):
            g = int(uniform() * num_groups)
            old = stages.of[g]
            first, end = stages.room(g)
            if first == end:
                continue
            to = self._target(old, first, end)
            if to == old or self.size[old] == self.least:
                continue
            left, joined = stages.loads_after(g, to)
            if joined * scale > 2 * SHARPNESS:
                continue
            price = _energy(left, scale) + _energy(joined, scale)
            price -= _energy(load[old], scale) + _energy(load[to], scale)
            if price <= 0 or uniform() < math.exp(-price / temperature):
                stages.move(g, to)
                self.size[old] -= 1
                self.size[to] += 1
                self._look(max(left, joined))

    def _target(self, old: int, first: int, end: int) -> int:
        """A stage from `first` to `end`, mostly next to the old one."""
        uniform = self.draw.random
        if uniform() < NEAR_SHARE:
            return min(max(old + (1 if uniform() < 0.5 else -1), first), end)
        return first + int(uniform() * (end - first + 1))

    def _look(self, changed: float) -> None:
        """Keep the stages if they are the best yet; `changed` is the larger load of the two that changed."""
        if changed < self.value and (value := max(self.stages.load)) < self.value:
            self.best, self.value = list(self.stages.of), value


def _energy(load: float, scale: float) -> float:
    return math.exp(load * scale - SHARPNESS)
