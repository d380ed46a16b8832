"""Upper bounds without all ideals: the recurrence over a small pool of them, then over neighbours of what it found.

The pool holds the prefixes of several topological orders, then also ideals that cut little (module `low_cuts`). The
recurrence combines them freely (a chain may change from one order to another where one prefix contains the other), so
it beats the best single order. Then the boundaries of the best chain are moved: all ideals with one group more or
less, and with two, as far as there are not too many.

`order_search` goes on from there, for graphs whose ideals are too many, by turns: wider beams of ideals that cut
little, beams between the boundaries around the heaviest stage, and local search from perturbed partitions, whose
boundaries, and orders through them, are combined with the best by the recurrence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from planner.ideals import Groups, bits
from planner.partition.annealing import anneal
from planner.partition.exact_pass import EXACT, improve
from planner.partition.instance import BottleneckInstance, simple_bound_s
from planner.partition.loads import Bottleneck, load_s
from planner.partition.local_search import Stages, descend, kick
from planner.partition.low_cuts import low_cuts
from planner.partition.orders import levels, prefixes, topological_orders, within_stages

NUM_RANDOM = 6
"""Random orders beside the six fixed ones."""
ROUNDS = 6
STEPS = (1.05, 1.2, 1.6, 2.5, 5.0, 20.0, math.inf)
"""How far above the simple lower bound a first partition is sought: a pass is quick when little is below its value."""
MAX_PAIRS = 4000
"""Ideals two groups away from a boundary that one round tries."""
BEAM_WIDTH = 20
MAX_WIDTH = 400
"""Ideals of each size in a beam, at first and at most."""
MOVES_PER_GROUP, MAX_SLOWER = 2500, 4
"""Tried moves of the first annealing, and how many times as many the later ones try at most."""
HEATS = (1.0, 0.3, 0.1)
"""First temperatures of annealing, one drawn each time."""
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
    best = first_search(instance, seed=seed, num_random=num_random, expired=expired)
    if best is None or not rounds:
        return best
    return widened(instance, best, seed=seed, rounds=rounds, expired=expired)


def first_search(
    instance: BottleneckInstance,
    *,
    seed: int = 0,
    num_random: int = NUM_RANDOM,
    expired: Callable[[], bool] = lambda: False,
) -> Bottleneck | None:
    """The best chain of prefixes of some orders."""
    pool = {0}
    for order in topological_orders(instance, seed, num_random):
        pool.update(prefixes(order))
        if expired() or len(pool) * len(order) > MAX_POOL_BYTES:
            break
    return first_in(instance, sorted(pool), expired)


def widened(
    instance: BottleneckInstance,
    best: Bottleneck,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    expired: Callable[[], bool] = lambda: False,
) -> Bottleneck:
    """A partition no worse than `best`, from ideals that cut little, then from neighbours of its boundaries."""
    beam = low_cuts(instance, 0, instance.groups.everything, BEAM_WIDTH, draw=random.Random(seed), expired=expired)
    best = _better(instance, beam, best, expired)
    return polish(instance, best, seed=seed, rounds=rounds, expired=expired)


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
    for number in range(max_iterations):
        if expired():
            break
        draw = random.Random(seed * 1_000_003 + number)
        pool = VARIATIONS[number % len(VARIATIONS)](instance, best, draw, number, expired)
        found = _better(instance, pool, best, expired)
        if found is not best:
            best = polish(instance, found, seed=number, rounds=2, expired=expired)
    return best


def _better(
    instance: BottleneckInstance, pool: Iterable[int], best: Bottleneck, expired: Callable[[], bool]
) -> Bottleneck:
    """The best partition with boundaries in the pool or of the best known one."""
    found, _ = improve(instance, sorted({0, *pool, *boundaries(best)}), best.value_s * EXACT, expired)
    return found or best


def _wide_beam(
    instance: BottleneckInstance, best: Bottleneck, draw: random.Random, number: int, expired: Callable[[], bool]
) -> set[int]:
    """Low cuts of the whole graph, wider each time."""
    width = min(MAX_WIDTH, 2 * BEAM_WIDTH + number * BEAM_WIDTH)
    width = max(1, min(width, MAX_POOL_BYTES // len(instance.groups) ** 2))
    noise = draw.choice((0.0, 0.1, 0.3)) if number else 0.0
    return low_cuts(instance, 0, instance.groups.everything, width, draw=draw, noise=noise, expired=expired)


def _near_beam(
    instance: BottleneckInstance, best: Bottleneck, draw: random.Random, number: int, expired: Callable[[], bool]
) -> set[int]:
    """Low cuts between the boundaries one to three stages around the heaviest stage."""
    loads = [load_s(instance, c, stage) for c, stage in best.stages]
    ends, worst, reach = [0, *boundaries(best)], loads.index(max(loads)), draw.randint(1, 3)
    start, end = ends[max(0, worst - reach)], ends[min(len(loads), worst + 1 + reach)]
    noise = draw.choice((0.0, 0.3, 0.6))
    return low_cuts(instance, start, end, MAX_WIDTH, draw=draw, noise=noise, expired=expired)


def _recombined(
    instance: BottleneckInstance, best: Bottleneck, draw: random.Random, number: int, expired: Callable[[], bool]
) -> set[int]:
    """Prefixes of orders through the best partition and through another local optimum near it."""
    early = levels(instance.groups)
    parts = (best, _varied(instance, best, draw))
    return {ideal for part in parts for ideal in _around(instance.groups, boundaries(part), early, draw)}


def _annealed(
    instance: BottleneckInstance, best: Bottleneck, draw: random.Random, number: int, expired: Callable[[], bool]
) -> set[int]:
    """Prefixes of orders through a partition that annealing reaches from the best one, slower each time."""
    moves = MOVES_PER_GROUP * len(instance.groups) * min(1 + number // 3, MAX_SLOWER)
    found = anneal(Stages(instance, best), draw, moves, hot=draw.choice(HEATS), expired=expired)
    if found is None:
        return set()
    early = levels(instance.groups)
    return {ideal for part in (best, found) for ideal in _around(instance.groups, boundaries(part), early, draw)}


VARIATIONS = (_annealed, _recombined, _wide_beam, _annealed, _recombined, _near_beam)
"""Where `order_search` looks for a better partition, in turn."""


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


def split_up(instance: BottleneckInstance, fewer: Bottleneck, seed: int) -> Bottleneck | None:
    """A partition with the fixed number of stages that is no worse than one with fewer, where refining gives one."""
    draw = random.Random(seed)
    pool = {0, *_around(instance.groups, boundaries(fewer), levels(instance.groups), draw)}
    found, _ = improve(instance, sorted(pool), fewer.value_s * (2 - EXACT))
    return found


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
