"""Upper bounds without all ideals: the recurrence over a small pool of them, then over neighbours of what it found.

The pool holds the prefixes of several topological orders. The recurrence combines them freely (a chain may change from
one order to another where one prefix contains the other), so it beats the best single order. Then the boundaries of the
best chain are moved: all ideals with one group more or less, and with two, as far as there are not too many.
`order_search` goes on from there, for graphs whose ideals are too many: local search from perturbed partitions, whose
boundaries, and orders through them, are combined with the best by the recurrence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from planner.ideals import Groups, bits
from planner.partition.exact_pass import EXACT, improve
from planner.partition.instance import BottleneckInstance
from planner.partition.loads import Bottleneck
from planner.partition.local_search import Stages, descend, kick
from planner.partition.orders import levels, prefixes, topological_orders, within_stages

NUM_RANDOM = 6
"""Random orders beside the six fixed ones."""
ROUNDS = 6
STEPS = (1.005, 1.05, 1.2, 1.6, 2.5, 5.0, 20.0, math.inf)
"""How far above the simple lower bound a first partition is sought: a pass is quick when little is below its value."""
MAX_PAIRS = 4000
"""Ideals two groups away from a boundary that one round tries."""
MAX_POOL_BYTES = 100_000_000
"""Groups times ideals of the pool: no further orders beyond it."""


def pool_search(
    instance: BottleneckInstance,
    *,
    seed: int = 0,
    num_random: int = NUM_RANDOM,
    rounds: int = ROUNDS,
    expired: Callable[[], bool] = lambda: False,
) -> Bottleneck | None:
    """A good partition; None when no chain of the pool fits (or the clock ended the search). Same seed, same answer."""
    pool = {0}
    for order in topological_orders(instance, seed, num_random):
        pool.update(prefixes(order))
        if expired() or len(pool) * len(order) > MAX_POOL_BYTES:
            break
    best = first_in(instance, sorted(pool), expired)
    return best and polish(instance, best, seed=seed, rounds=rounds, expired=expired)


def order_search(
    instance: BottleneckInstance,
    *,
    seed: int = 0,
    max_iterations: int,
    expired: Callable[[], bool] = lambda: False,
    start: Bottleneck | None = None,
) -> Bottleneck | None:
    """`pool_search` and then `max_iterations` rounds of local search and recombination, or until the clock expires.

    Same seed and iterations, same answer. None when no partition was found at all.
    """
    best = start or pool_search(instance, seed=seed, num_random=4 * NUM_RANDOM, expired=expired)
    if best is None or len(best.stages) < 2:
        return best
    early = levels(instance.groups)
    for number in range(max_iterations):
        if expired():
            break
        draw = random.Random(seed * 1_000_003 + number)
        pool = {0, *boundaries(best)}
        for part in (best, _varied(instance, best, draw)):
            pool.update(_around(instance.groups, boundaries(part), early, draw))
        found, _ = improve(instance, sorted(pool), best.value_s * EXACT, expired)
        if found is not None:
            best = polish(instance, found, seed=number, rounds=2, expired=expired)
    return best


def _varied(instance: BottleneckInstance, best: Bottleneck, draw: random.Random) -> Bottleneck:
    """Another local optimum near the best partition."""
    stages = Stages(instance, best)
    kick(stages, draw, draw.choice((0, 2, 5, 10, 20)))
    descend(stages, draw)
    return stages.partition() or best


def _around(groups: Groups, ideals: Sequence[int], early: Sequence[int], draw: random.Random) -> set[int]:
    """Prefixes of random orders that run through the ideals."""
    pool: set[int] = set()
    sets = [ideal & ~before for before, ideal in zip((0, *ideals), ideals, strict=False)]
    for spread in (0.0, 1.0, 4.0):
        key = [early[g] * (spread < 4.0) + draw.uniform(0, 1 + spread) for g in range(len(groups))]
        pool.update(prefixes(within_stages(groups, sets, key.__getitem__)))
    return pool


def polish(
    instance: BottleneckInstance,
    best: Bottleneck,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    expired: Callable[[], bool] = lambda: False,
) -> Bottleneck:
    """The best partition whose boundaries are near those of a known one, again and again until none is better."""
    draw = random.Random(seed)
    for _ in range(rounds):
        pool = {0, *neighbours(instance.groups, boundaries(best), draw)}
        found, _ = improve(instance, sorted(pool), best.value_s * EXACT, expired)
        if found is None:
            break
        best = found
    return best


def first_in(instance: BottleneckInstance, pool: list[int], expired: Callable[[], bool]) -> Bottleneck | None:
    """The best partition with prefixes in the pool, sought from the simple lower bound upwards."""
    low = simple_bound_s(instance)
    for step in STEPS:
        found, finished = improve(instance, pool, low * step if low else math.inf, expired)
        if found is not None or not finished:
            return found
    return None


def simple_bound_s(instance: BottleneckInstance) -> float:
    """The heaviest group, and all work spread over all devices, on the quickest class for each group."""
    classes = [entry for entry in instance.classes if entry.count]
    least = [min(entry.work_s[g] for entry in classes) for g in range(len(instance.groups))] if classes else []
    finite = [work for work in least if math.isfinite(work)]
    spread = sum(finite) / instance.num_devices if instance.num_devices else 0.0
    return max(spread, max(finite, default=0.0))


def boundaries(best: Bottleneck) -> list[int]:
    """The ideals of a partition, without the empty one."""
    ideal, found = 0, []
    for _, stage in best.stages:
        ideal |= stage
        found.append(ideal)
    return found


def neighbours(groups: Groups, ideals: Iterable[int], draw: random.Random) -> set[int]:
    """The ideals themselves, all one group away, and up to `MAX_PAIRS` that are two away."""
    kept = list(ideals)
    near = {other for ideal in kept for other in one_away(groups, ideal)}
    once = sorted(near)
    draw.shuffle(once)
    far: set[int] = set()
    for ideal in once:
        if len(far) >= MAX_PAIRS:
            break
        far.update(one_away(groups, ideal))
    return {*kept, *near, *far}


def one_away(groups: Groups, ideal: int) -> Iterable[int]:
    """All ideals with one group more or less."""
    yield from (ideal | 1 << g for g in bits(groups.addable(ideal)))
    yield from (ideal ^ 1 << g for g in bits(groups.maximal(ideal)))
