"""The partition of a chain onto device classes whose worst stage is best: a max-min dynamic program.

    V[k, u](i) = best worst value of layers i .. n-1 in k stages on u groups (per class)
    V[k, u](i) = max over config c, j > i of  min(value_c(i, j), V[k-1, u - c](j)),     V[0, 0](n) = infinity

Exact for values that depend on a stage's layers and config alone, as memory in inference does. O(S |u| R n^2); without
a given number of stages the index k falls away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from planner.costs.intervals import Array
from planner.optimizers._chain_space import ChainSpace, Config, Counts

Value = Callable[[Config], Array]
"""[i, j] -> value of a stage of layers i .. j-1; -infinity where it is not allowed."""

Stages = list[tuple[int, int, Config, Counts]]
"""As `ChainSpace.plan` takes them."""

_State = tuple[int, Counts]


@dataclass(frozen=True, slots=True)
class _Choice:
    end: int
    config: Config


def best_worst(space: ChainSpace, value: Value, num_stages: int | None) -> tuple[float, Stages] | None:
    """(the best worst value, the stages from the first on, fewest groups first); None when nothing is allowed."""
    tables = _tables(space, value, num_stages)
    wanted = [(state, table[0][0]) for state, table in tables.items() if num_stages in (None, state[0])]
    best = max((v for _, v in wanted), default=-np.inf)
    if best == -np.inf:
        return None
    state = min((s for s, v in wanted if v == best), key=lambda s: (sum(s[1]), s))
    return float(best), _stages(space, tables, state, num_stages is not None)


def _tables(
    space: ChainSpace, value: Value, num_stages: int | None
) -> dict[_State, tuple[Array, list[_Choice | None]]]:
    n, none = space.num_layers, (0,) * len(space.classes)
    values = {config: _allowed(space, value(config)) for config in space.configs}
    nothing = np.where(np.arange(n + 1) == n, np.inf, -np.inf)
    tables: dict[_State, tuple[Array, list[_Choice | None]]] = {(0, none): (nothing, [None] * (n + 1))}
    counted = range(1, num_stages + 1) if num_stages is not None else (0,)
    for k in counted:
        for counts in sorted(product(*(range(c + 1) for c in space.capacity)), key=sum):
            if any(counts):
                tables[k, counts] = _table(space, tables, values, k, counts, num_stages is not None)
    return tables


def _table(
    space: ChainSpace,
    tables: dict[_State, tuple[Array, list[_Choice | None]]],
    values: dict[Config, Array],
    k: int,
    counts: Counts,
    counted: bool,
) -> tuple[Array, list[_Choice | None]]:
    n = space.num_layers
    best, choice = np.full(n + 1, -np.inf), list[_Choice | None]([None] * (n + 1))
    for config in space.configs:
        rest = _without(counts, config)
        later = tables.get((k - 1 if counted else 0, rest)) if rest is not None else None
        if later is None:
            continue
        worst = np.minimum(values[config], later[0][None, :])
        ends = worst.argmax(axis=1)
        found = worst[np.arange(n + 1), ends]
        for i in np.flatnonzero(found > best):
            best[i], choice[i] = found[i], _Choice(int(ends[i]), config)
    return best, choice


def _allowed(space: ChainSpace, values: Array) -> Array:
    """Non-empty intervals between places that may be cut."""
    at = np.arange(space.num_layers + 1)
    possible = (at[:, None] < at[None, :]) & np.asarray(space.may_cut)[None, :]
    return np.where(possible, values, -np.inf)


def _without(counts: Counts, config: Config) -> Counts | None:
    c = config.device_class
    if counts[c] < config.replicas:
        return None
    return (*counts[:c], counts[c] - config.replicas, *counts[c + 1 :])


def _stages(
    space: ChainSpace, tables: dict[_State, tuple[Array, list[_Choice | None]]], state: _State, counted: bool
) -> Stages:
    found: Stages = []
    k, counts = state
    at = 0
    while at < space.num_layers:
        choice = tables[k, counts][1][at]
        assert choice is not None
        rest = _without(counts, choice.config)
        assert rest is not None
        found.append((at, choice.end, choice.config, rest))
        at, counts, k = choice.end, rest, k - 1 if counted else 0
    return found
