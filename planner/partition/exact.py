"""The exact method from end to end: contract, bound from above, windows, one pass; memory only where it matters.

Memory is left out first: contractions are at their strongest then, and the value is a lower bound. When the partition
found fits into memory, it is optimal. Otherwise the search is repeated with memory, and with the contractions that
move no bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import LimitError
from planner.ideals import enumerate_ideals
from planner.partition.contraction import Contraction, contract
from planner.partition.exact_pass import EXACT, MAX_IDEALS, improve
from planner.partition.instance import BottleneckInstance
from planner.partition.loads import Bottleneck, fits, valued
from planner.partition.upper_bound import first_search, order_search, split_up, widened

FEW_IDEALS = 20_000
"""Up to so many ideals a pass costs less than looking for a better value to start it from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best partition known (None: none fits, or none was found) and a lower bound in seconds.

    `bound_s` is infinite when it is proven that nothing fits, 0 when nothing is proven. `note` says what ended the
    search early, empty when it was finished.
    """

    best: Bottleneck | None
    bound_s: float
    note: str = ""

    @property
    def proven(self) -> bool:
        """Whether no partition is better by more than 1e-9."""
        return self.bound_s >= (self.best.value_s if self.best else math.inf) * EXACT


def minimise(
    instance: BottleneckInstance,
    *,
    seed: int = 0,
    expired: Callable[[], bool] = lambda: False,
    max_ideals: int = MAX_IDEALS,
) -> Solution:
    """The smallest bottleneck of an instance, with its proof where the graph has at most `max_ideals` ideals.

    A fixed number of stages is tried as a limit first: contractions are allowed then, the value is a lower bound, and
    often the partition found can be split up without becoming worse.
    """
    if instance.num_stages is None:
        return _at_most(instance, seed=seed, expired=expired, max_ideals=max_ideals)
    limited = dataclasses.replace(instance, num_stages=None, max_stages=instance.num_stages)
    fewer = _at_most(limited, seed=seed, expired=expired, max_ideals=max_ideals)
    if fewer.best is None and math.isinf(fewer.bound_s):
        return fewer
    best = fewer.best and split_up(instance, fewer.best, seed)
    if best is not None and best.value_s * EXACT <= fewer.bound_s:
        return Solution(best=best, bound_s=fewer.bound_s)
    exactly = _at_most(instance, seed=seed, expired=expired, max_ideals=max_ideals)
    found = min((b for b in (best, exactly.best) if b is not None), key=lambda b: b.value_s, default=None)
    return Solution(best=found, bound_s=max(fewer.bound_s, exactly.bound_s), note=exactly.note)


def _at_most(instance: BottleneckInstance, *, seed: int, expired: Callable[[], bool], max_ideals: int) -> Solution:
    """Without memory, and with it where the partition found does not fit."""
    light = _minimise(instance, keep_memory=False, seed=seed, expired=expired, max_ideals=max_ideals)
    if light.best is None or fits(instance, light.best.stages):
        return light
    whole = _minimise(instance, keep_memory=True, seed=seed, expired=expired, max_ideals=max_ideals)
    return Solution(best=whole.best, bound_s=max(light.bound_s, whole.bound_s), note=whole.note or light.note)


def heuristic(
    instance: BottleneckInstance,
    *,
    seed: int = 0,
    max_iterations: int,
    expired: Callable[[], bool] = lambda: False,
) -> Bottleneck | None:
    """A good partition without proof, for graphs with too many ideals: `order_search` on the contracted instance."""
    best: Bottleneck | None = None
    for keep_memory in (False, True):
        smaller = contract(instance, keep_memory=keep_memory, expired=expired)
        found = order_search(smaller.instance, seed=seed, max_iterations=max_iterations, expired=expired)
        best = _expanded(instance, smaller, found)
        if best is None or fits(instance, best.stages):
            break
    return best


def _minimise(
    instance: BottleneckInstance, *, keep_memory: bool, seed: int, expired: Callable[[], bool], max_ideals: int
) -> Solution:
    """One run of the method; the partition is one of the original groups.

    The pass comes early where there are few ideals below the first value found, else once a better one is known.
    """
    smaller = contract(instance, keep_memory=keep_memory, expired=expired)
    try:
        found = first_search(smaller.instance, seed=seed, expired=expired)
    except LimitError as fault:
        return Solution(best=None, bound_s=0.0, note=str(fault))
    best = _expanded(instance, smaller, found)
    with contextlib.suppress(LimitError):
        return _from(instance, smaller, best, keep_memory, expired, min(FEW_IDEALS, max_ideals))
    if found is not None:
        best = _expanded(instance, smaller, widened(smaller.instance, found, seed=seed, expired=expired))
    try:
        return _from(instance, smaller, best, keep_memory, expired, max_ideals)
    except LimitError as fault:
        return Solution(best=best, bound_s=0.0, note=str(fault))


def _from(
    instance: BottleneckInstance,
    smaller: Contraction,
    best: Bottleneck | None,
    keep_memory: bool,
    expired: Callable[[], bool],
    max_ideals: int,
) -> Solution:
    """The pass below the best known partition. LimitError when there are too many ideals."""
    below = best.value_s * EXACT if best else math.inf
    if best is not None and below <= 0:
        return Solution(best=best, bound_s=best.value_s)
    if best is not None:
        smaller = contract(instance, below=below, keep_memory=keep_memory, expired=expired)
    ideals = enumerate_ideals(smaller.instance.groups, max_ideals, expired)
    found, finished = improve(smaller.instance, ideals, below, expired)
    best = _expanded(instance, smaller, found) or best
    if not finished:
        return Solution(best=best, bound_s=0.0, note="the time limit ended the exact pass")
    return Solution(best=best, bound_s=best.value_s if best else math.inf)


def _expanded(instance: BottleneckInstance, smaller: Contraction, found: Bottleneck | None) -> Bottleneck | None:
    """The partition over the original groups, with its value there."""
    if found is None:
        return None
    stages = smaller.expand([stage for _, stage in found.stages])
    return valued(instance, [(c, stage) for (c, _), stage in zip(found.stages, stages, strict=True)])
