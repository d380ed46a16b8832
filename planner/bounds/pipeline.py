"""The pipeline bound: the best that any division of a chain can do in a synchronous iteration.

Theorem. With M microbatches and an unsplit backward, let stage s have P_s = F_s + B_s seconds of passes per microbatch,
c_s seconds of transfers into it (activations and gradients), t_s seconds of all-reduce and optimizer step. Every
schedule takes at least

    max over s of [ sum_{i<s} P_i  +  sum_{i<=s} c_i  +  M P_s ]

and, with the tails,

    T >= sum_{i<s} F_i + forward transfers + M P_s + max( t_s, sum_{i<s} B_i + backward transfers + t_0 )

Proof. Before its first forward, stage s waits for one microbatch to pass the stages before it and the transfers between
(all forward parts). It works M P_s. After its last backward, the last gradient passes the same stages back (all
backward parts), after which the first stage still has its tail; beside that, stage s has its own tail after its last
backward. Replicas that are dealt whole microbatches share the M: the busiest has ceil(M / r) of them.

With a split backward only the forward parts before the stage count, and no tail but its own. Several stages per device
group are not covered. To this comes the time in which stage s must idle, which `planner.bounds._idle` proves per
schedule.

The bound is the smallest value of this maximum over all divisions, found by asking for a value V whether a division
stays below it. Prefixes compare by two sums (forward and backward way); taking the smaller of each over all divisions
of the prefix into the same number of device groups is a relaxation, hence sound. It is tight where stages have equal
degrees: the sums of a prefix then do not depend on its division, transfers apart.

Memory is relaxed soundly: a stage before layer j holds at least 1 + need(j) microbatches (if there are), need(j)
the fewest stages in which the layers from j on fit. Prices are the least over device types and places in the cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from planner.bounds._bisect import Question, largest_refuted
from planner.bounds._idle import IdleRule
from planner.bounds._places import Places
from planner.bounds.base import BOUNDS, BoundQuery, lowered
from planner.bounds.path import PathBound, path_questions, rules_of
from planner.costs.compute import CANNOT_RUN_S
from planner.costs.intervals import Array, cut_bytes, interval_parts
from planner.costs.memory import total_bytes
from planner.costs.parts import StageParts, carries_gradient
from planner.costs.stage import StageSetting, stage_memory, stage_seconds
from planner.options import Level, Objective
from planner.schedules import SCHEDULES, PipelineShape
from planner.workload import ReplicaMode

RELATIVE_STEP = 1e-4
"""The search for the smallest value stops when it is known this well; the bound is its lower end."""

MANY = 2**40
"""More microbatches than there are."""

MAX_CELLS = 5e8
"""Largest table (groups x degrees x layers squared) that is tried."""


@BOUNDS.register
class PipelineBound:
    """Minimises the theorem's maximum over all divisions of a chain, degrees and batches.

    Only for chains through which, in training, a gradient returns all the way.
    """

    name = "pipeline"

    def objective_s(self, query: BoundQuery) -> float | None:
        """Bounds no closed form."""
        return None

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Bound on the simulated iteration time; None for graphs that are no chains, or too large."""
        index = query.problem.index
        if query.objective is not Objective.ITERATION_TIME or query.virtual or not is_chain_both_ways(query):
            return None
        cells = sum(query.groups.values()) * len(query.degrees(*max(query.batches))) * len(index) ** 2
        if cells > MAX_CELLS:
            return None
        low = PathBound().iteration_s(query) or 0.0
        places, asked, ceiling = Places(query), list[Question](), low
        for batch in query.batches:
            if query.expired():
                return low
            rules = _open_rules(query, batch)
            if rules:
                division = _Division(query, places, batch)
                asked += [partial(division.possible, rule) for rule in rules]
                ceiling = max(ceiling, division.most_s())
        high = min(query.iteration_upper_s, ceiling) if asked else query.iteration_upper_s
        return max(low, lowered(largest_refuted(asked, low, high, RELATIVE_STEP, query.expired)))


def _open_rules(query: BoundQuery, batch: tuple[int, int]) -> list[IdleRule]:
    """The idle rules with which the path alone does not refute the known plan's time at this batch."""
    questions = path_questions(query, batch)
    known = query.iteration_upper_s
    return [rule for rule, may in zip(rules_of(query), questions, strict=True) if may(known)]


def is_chain_both_ways(query: BoundQuery) -> bool:
    """Whether stages wait for each other in their order: forward, and in training backward as well."""
    index = query.problem.index
    trains = query.problem.training is not None
    return index.is_chain() and (not trains or all(carries_gradient(index, t) for t in range(len(index.tensors))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Degree:
    """Least prices of every interval at one replication degree; infinite where it does not fit."""

    groups: int
    forward_s: Array
    backward_s: Array
    busy_s: Array
    tail_s: Array
    into_forward_s: Array
    into_backward_s: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """Prices at one degree of stages that may stay below a value: [j, w] is the stage of layers j - 1 - w .. j - 1."""

    groups: int
    value: float
    starts: Array
    forward_s: Array
    backward_s: Array
    busy_s: Array
    tail_s: Array
    into_forward_s: Array
    into_backward_s: Array
    rest_s: Array
    splits_backward: bool

    def extended(
        self, forward: Array, backward: Array, first: bool, groups_after: int, count: int, rule: IdleRule
    ) -> tuple[Array, Array]:
        """Least forward and backward sums with one more stage, per end."""
        ahead = forward[self.starts] + self.into_forward_s
        back = backward[self.starts] + self.into_backward_s
        if self.splits_backward:  # weight gradients may wait until everything has returned
            back = np.zeros_like(back)
        idle = rule(self.rest_s, self.forward_s, self.backward_s, groups_after, count)
        fits = ahead + self.busy_s + idle + np.maximum(self.tail_s, back) <= self.value
        own = self.tail_s if first else 0.0  # the first stage's tail follows the way back
        ways = (ahead + self.forward_s, back + self.backward_s + own)
        return np.where(fits, ways[0], np.inf).min(axis=1), np.where(fits, ways[1], np.inf).min(axis=1)


def _banded(d: _Degree, rest: Array, value: float, *, splits_backward: bool) -> _Band | None:
    """The band of a degree, as wide as the longest stage that may stay below the value; None when there is none."""
    n = len(rest) - 1
    at = np.arange(n + 1)
    fits = d.busy_s <= value
    if not fits.any():
        return None
    width = int(np.where(fits.any(axis=0), at - fits.argmax(axis=0), 1).max())
    starts = at[:, None] - 1 - np.arange(width)[None, :]
    inside, starts = starts >= 0, np.maximum(starts, 0)
    ends = np.broadcast_to(at[:, None], starts.shape)
    return _Band(
        groups=d.groups,
        value=value,
        starts=starts,
        forward_s=d.forward_s[starts, ends],
        backward_s=d.backward_s[starts, ends],
        busy_s=np.where(inside, d.busy_s[starts, ends], np.inf),
        tail_s=d.tail_s[starts, ends],
        into_forward_s=d.into_forward_s[starts],
        into_backward_s=d.into_backward_s[starts],
        rest_s=rest[:, None],
        splits_backward=splits_backward,
    )


def _rest(query: BoundQuery, batch: tuple[int, int]) -> Array:
    """Per position j: the least passes of layers j .. n-1 (sums of single layers, so that no division counts).

    At any level: one that a layer alone has no room for may fit where fewer microbatches are in flight.
    """
    passes = [row for degree in query.degrees(*batch) for row in query.passes(batch[0], degree)]
    single = np.min(np.array(passes), axis=0)
    return np.concatenate((np.cumsum(single[::-1])[::-1], [0.0]))


class _Division:
    """Which divisions of the chain stay below a value, at one batch."""

    def __init__(self, query: BoundQuery, places: Places, batch: tuple[int, int]) -> None:
        self.query, self.places = query, places
        self.size, self.count = batch
        self.n = len(query.problem.index)
        self.total = sum(query.groups.values())
        self.dealt = query.replica_mode is ReplicaMode.DEALT
        at = np.arange(self.n + 1)
        self.later = at[:, None] < at[None, :]
        raw = [(r, kind) for r in query.degrees(*batch) for kind in query.groups]
        self._intervals: dict[tuple[str, int], StageParts] = {}
        self.need = self._stages_needed(raw)
        self.degrees = [self._degree(r, [kind for degree, kind in raw if degree == r]) for r in {r for r, _ in raw}]
        self.rest = _rest(query, batch)

    def most_s(self) -> float:
        """A value that every division which fits stays below."""
        terms = [
            float((d.busy_s + d.tail_s)[np.isfinite(d.busy_s)].max(initial=0.0))
            + float((d.into_forward_s + d.into_backward_s).max())
            for d in self.degrees
        ]
        return (2 + self.n) * max(terms, default=0.0) + 2 * float(self.rest[0])

    def possible(self, rule: IdleRule, value: float) -> bool:
        """Whether the relaxed recurrence has a division in which every stage stays at or below `value`."""
        value *= 1 + 1e-12
        splits = self.query.splits_backward
        found = (_banded(d, self.rest, value, splits_backward=splits) for d in self.degrees)
        bands = [band for band in found if band is not None]
        forward = [np.full(self.n + 1, np.inf) for _ in range(self.total + 1)]
        backward = [np.full(self.n + 1, np.inf) for _ in range(self.total + 1)]
        forward[0][0] = backward[0][0] = 0.0
        for used in range(self.total):
            if not np.isfinite(forward[used]).any():
                continue
            if used % 16 == 0 and self.query.expired():
                return True
            for band in bands:
                target = used + band.groups
                if target <= self.total:
                    ways = band.extended(
                        forward[used], backward[used], used == 0, self.total - target, self.count, rule
                    )
                    np.minimum(forward[target], ways[0], out=forward[target])
                    np.minimum(backward[target], ways[1], out=backward[target])
                    if np.isfinite(forward[target][self.n]):
                        return True
        return False

    def _degree(self, r: int, kinds: list[str]) -> _Degree:
        prices = [self._on_type(r, kind) for kind in kinds]
        forward, backward, tail = (np.minimum.reduce([p[k] for p in prices]) for k in range(3))
        fits = np.logical_or.reduce([p[3] for p in prices])
        share = math.ceil(self.count / r) if self.dealt else self.count
        busy = np.where(fits, share * (forward + backward), np.inf)
        into = self._into(r)
        return _Degree(
            groups=r,
            forward_s=forward,
            backward_s=backward,
            busy_s=busy,
            tail_s=tail,
            into_forward_s=into[0],
            into_backward_s=into[1],
        )

    def _on_type(self, r: int, kind: str) -> tuple[Array, Array, Array, Array]:
        """Forward, backward, tail, and whether the interval runs and fits, on one device type: the least of all levels.

        A level counts for an interval only where it fits. ZeRO 2 and 3 only where ZeRO 1 does not, which is never
        slower: a reduce-scatter (and two gathers) in M passes are as much as they take off the tail at least, and idle
        time shrinks by those of K - 1 < M passes at most.
        """
        priced = {level: self._at_level(r, kind, level) for level in self.query.levels}
        if len(priced) == 1:
            return next(iter(priced.values()))
        runs = np.logical_or.reduce([p[3] for p in priced.values()])
        counts = {level: p[3] | ~runs for level, p in priced.items()}
        for level in priced:
            frugal = Level(level.recomputation, 1)
            if level.zero > 1 and frugal in priced:
                counts[level] = counts[level] & ~priced[frugal][3]
        forward, backward, tail = (
            np.minimum.reduce([np.where(counts[level], p[k], np.inf) for level, p in priced.items()]) for k in range(3)
        )
        return forward, backward, tail, runs

    def _at_level(self, r: int, kind: str, level: Level) -> tuple[Array, Array, Array, Array]:
        problem, parts = self.query.problem, self._parts(r, kind)
        setting = self._setting(r, kind, level)
        seconds = stage_seconds(problem, parts, setting)
        held = np.minimum(self._most_held(), 1 + self.need)[None, :]
        fits = self._memory(parts, setting, held) <= self._limit(kind)
        runs = self.later & fits & (np.asarray(seconds.forward_s) < CANNOT_RUN_S)
        tail = seconds.all_reduce_s + seconds.optimizer_s
        return np.asarray(seconds.forward_s), np.asarray(seconds.backward_s), np.asarray(tail), runs

    def _parts(self, r: int, kind: str) -> StageParts:
        sharers = 1 if self.dealt else r
        if (kind, sharers) not in self._intervals:
            problem = self.query.problem
            samples = self.size / (sharers * problem.workload.context)
            prices = self.query.costs.layer_prices(kind, samples, problem.workload.tensor)
            self._intervals[kind, sharers] = interval_parts(problem, prices, self.size)
        return self._intervals[kind, sharers]

    def _setting(self, r: int, kind: str, level: Level) -> StageSetting:
        work, places = self.query.problem.workload, self.places
        return StageSetting(
            device_type=kind,
            tensor=work.tensor,
            replicas=r,
            sharers=1 if self.dealt else r,
            zero=level.zero,
            recomputation=level.recomputation,
            group_route=places.inside(kind),
            replica_route=places.among(r * work.context),
            context=work.context,
            expert=work.expert,
            reshard=level.reshard,
            context_route=places.around(kind),
            expert_route=places.among(work.expert),
            expert_replica_route=places.among(r * work.context // work.expert),
        )

    def _memory(self, parts: StageParts, setting: StageSetting, held: Array | int) -> Array:
        return np.asarray(total_bytes(stage_memory(self.query.problem, parts, setting, held)))

    def _limit(self, kind: str) -> int:
        problem = self.query.problem
        return max(problem.memory_limits[d.id] for d in problem.cluster.devices if d.type == kind)

    def _most_held(self) -> int:
        """What a stage far from the end holds at least under some allowed schedule (1 where that is unknown)."""
        if self.dealt or self.query.problem.training is None:
            return 1
        depth = min(self.n, self.total)
        shape = PipelineShape(num_stages=depth, num_microbatches=self.count, dealt=(1,) * depth)
        return min(SCHEDULES[name].in_flight(shape, 0) for name in self.query.schedules)

    def _stages_needed(self, raw: list[tuple[int, str]]) -> Array:
        """need[j]: the fewest stages in which layers j .. n-1 fit, whatever the degrees."""
        need = np.zeros(self.n + 1, dtype=np.int64)
        most, room = self._most_held(), self._most_that_fit(raw)
        for i in range(self.n - 1, -1, -1):
            later = need[i + 1 :]
            enough = room[i, i + 1 :] >= np.minimum(most, 1 + later)
            need[i] = 1 + later.min(where=enough, initial=self.n)
        return need

    def _most_that_fit(self, raw: list[tuple[int, str]]) -> Array:
        """[i, j]: with how many microbatches in flight the interval fits where it fits best; -1 where it never does."""
        room = np.full((self.n + 1, self.n + 1), -1, dtype=np.int64)
        for (r, kind), level in product(raw, self.query.levels):
            parts, setting, limit = self._parts(r, kind), self._setting(r, kind, level), self._limit(kind)
            always, one = (self._memory(parts, setting, held) for held in (0, 1))
            each = one - always
            most = np.where(each > 0, (limit - always) // np.maximum(each, 1), MANY)
            room = np.maximum(room, np.where(always <= limit, most, -1))
        return room

    def _into(self, r: int) -> tuple[Array, Array]:
        """Per boundary, least seconds of the transfers into a stage of `r` replicas (nothing before the first)."""
        route = self.places.between()
        if route is None:
            return np.zeros(self.n + 1), np.zeros(self.n + 1)
        work = self.query.problem.workload
        share = work.tensor * work.context * (1 if self.dealt else r)
        forward, backward = cut_bytes(self.query.problem.index)
        both = [self.size * cut / share / route.bandwidth_bytes_per_s for cut in (forward, backward)]
        if self.query.problem.training is None:
            both[1] = np.zeros(self.n + 1)
        return both[0], both[1]
