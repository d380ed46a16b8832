"""Fewest device groups on which a chain fits: the memory question alone, with any replication degree per stage.

    G[k](i) = fewest groups on which layers i .. n-1 fit in k stages
    G[k+1](i) = min over j > i of  r(i, j, k+1) + G[k](j)

with r(i, j, k) the smallest allowed replication degree at which the stage fits when it is the k-th from the end.
O(S n^2) per batch instead of tables over device counts. It ignores time and links, so it proves infeasibility; with one
device class and split microbatches its solution is also a plan.
"""

from __future__ import annotations

import numpy as np

from planner.costs.compute import CANNOT_RUN_S
from planner.costs.intervals import Array
from planner.errors import LimitError
from planner.optimizers._chain_space import ChainSpace, Config, Counts


def fewest_groups(
    space: ChainSpace, num_stages: int | None
) -> tuple[int, list[tuple[int, int, Config, Counts]]] | None:
    """(groups, stages as `ChainSpace.plan` takes them) of a chain that fits; None when none does on all groups.

    `space` must hold every allowed degree. Where microbatches are dealt, one in flight is assumed (a relaxation).
    LimitError when the search's clock ends it.
    """
    n, total = space.num_layers, sum(space.capacity)
    most = min(n, total) if num_stages is None else num_stages
    groups = [np.where(np.arange(n + 1) == n, 0.0, np.inf)]
    ends: list[Array] = []
    for k in range(1, most + 1):
        if space.context.clock.expired():
            raise LimitError("the time limit came before it was known whether the model fits: allow more time")
        table = _smallest_degree(space, k) + groups[-1][None, :]
        ends.append(table.argmin(axis=1))
        groups.append(table.min(axis=1))
    counts = [float(row[0]) for row in groups]
    allowed = range(1, most + 1) if num_stages is None else [num_stages]
    best = min(allowed, key=lambda k: counts[k])
    if counts[best] > total:
        return None
    return int(counts[best]), _stages(space, groups, ends, best)


def _smallest_degree(space: ChainSpace, k: int) -> Array:
    """[i, j]: the smallest degree at which layers i .. j-1 fit as k-th stage from the end; infinite when none is."""
    at = np.arange(space.num_layers + 1)
    smallest = np.full((len(at), len(at)), np.inf)
    held = 1 if space.dealt else space.held(k)
    possible = (at[:, None] < at[None, :]) & space.may_cut[None, :]
    for config in sorted(space.configs, key=lambda c: -c.replicas):
        fits = possible & (space.excess(config, held, space.late(k)) <= 0) & (space.pass_s(config) < CANNOT_RUN_S)
        smallest = np.where(fits, config.replicas, smallest)
    return smallest


def _stages(space: ChainSpace, groups: list[Array], ends: list[Array], k: int) -> list[tuple[int, int, Config, Counts]]:
    """The stages from the first on, each with the groups that the later ones take (first class)."""
    found: list[tuple[int, int, Config, Counts]] = []
    at = 0
    while k:
        end = int(ends[k - 1][at])
        later = int(groups[k - 1][end])
        degree = int(groups[k][at]) - later
        counts = (later, *[0] * (len(space.classes) - 1))
        found.append((at, end, Config(0, degree), counts))
        at, k = end, k - 1
    return found
