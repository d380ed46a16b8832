"""Levels of virtual stages: which stages recompute so that every rank has room, at the least cost in seconds.

A rank holds what its stages always hold, the most that they keep together in its schedule's order, and one workspace.
Where that is too much, stages of the rank recompute one by one, those first that cost fewest seconds for a byte, until
it fits. A pipeline is as slow as its busiest rank, so that ranks can be looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from planner.costs.holding import Holding
from planner.optimizers._chain_space import ChainSpace, Config
from planner.options import Level
from planner.schedules import Kept, Placement, rank_at

Shard = tuple[int, bool]
"""ZeRO stage and resharding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An idea with its prices."""

    placement: Placement
    space: ChainSpace
    config: Config
    ranks: int
    stages: int

    @property
    def limit(self) -> float:
        """Bytes of one device."""
        return float(self.space.limit_bytes(self.config))

    def rank(self, stage: int) -> int:
        """The rank that runs a stage."""
        return rank_at(self.placement, stage, self.ranks)


class Rooms:
    """What the stages of a shape take at each level, and with which levels every rank has room."""

    def __init__(self, shape: Shape, cuts: list[int], holding: Holding) -> None:
        self.shape, self.holding = shape, holding
        self._intervals = list(pairwise(cuts))
        self._at: dict[Level, list[_Need]] = {}

    def shards(self) -> list[Shard]:
        """The ways to divide the state among replicas, in the order of the levels."""
        return list(dict.fromkeys(map(shard_of, self.shape.space.levels)))

    def estimate_s(self, levels: tuple[Level, ...]) -> float:
        """Of a uniform pipeline in which every rank has the passes of the busiest."""
        shape, passes = self.shape, [0.0] * self.shape.ranks
        for stage, level in enumerate(levels):
            passes[shape.rank(stage)] += self._needs(level)[stage].seconds
        return uniform_pipeline_s(shape.space.num_microbatches, shape.ranks, shape.stages, shape.ranks * max(passes))

    def levels(self, shard: Shard, limit: float) -> tuple[Level, ...] | None:
        """Of every stage, all with this shard; None where that is not enough."""
        kinds = [level for level in self.shape.space.levels if shard_of(level) == shard]
        found = [kinds[0]] * self.shape.stages
        while True:
            over = self._over(found, limit)
            if not over:
                return tuple(found)
            for rank, num_bytes in over.items():
                if not self._save(found, kinds, rank, num_bytes):
                    return None

    def _save(self, found: list[Level], kinds: list[Level], rank: int, num_bytes: float) -> bool:
        """Change levels of the rank's stages until so many bytes are saved, at least one; False if none saves."""
        changed = False
        while num_bytes > 0 and (swap := self._best_swap(found, kinds, rank)) is not None:
            saved, stage, level = swap
            found[stage], num_bytes, changed = level, num_bytes - saved, True
        return changed

    def _best_swap(self, found: list[Level], kinds: list[Level], rank: int) -> tuple[float, int, Level] | None:
        """(bytes saved, stage, level) that costs fewest seconds for a byte."""
        swaps = []
        for stage in (s for s in range(self.shape.stages) if self.shape.rank(s) == rank):
            now, held = self._needs(found[stage])[stage], self.holding.in_flight(stage)
            for level in kinds:
                new = self._needs(level)[stage]
                saved = now.always - new.always + held * (now.kept - new.kept)
                if saved > 0:
                    swaps.append(((new.seconds - now.seconds) / saved, saved, stage, level))
        if not swaps:
            return None
        _, saved, stage, level = min(swaps, key=lambda swap: (swap[0], -swap[1], swap[2]))
        return saved, stage, level

    def _over(self, levels: list[Level], limit: float) -> dict[int, float]:
        """Rank -> bytes over the limit; as `planner.costs.holding.on_one_device`."""
        shape = self.shape
        needs = [self._needs(level)[stage] for stage, level in enumerate(levels)]
        peaks = self.holding.peak_bytes([Kept(from_forward=need.kept, from_input_gradient=need.late) for need in needs])
        held = [float(peaks[rank]) for rank in range(shape.ranks)]  # stage r < P is on rank r
        for stage, need in enumerate(needs):
            held[shape.rank(stage)] += need.always
        for rank in range(shape.ranks):
            mine = [need.shared for stage, need in enumerate(needs) if shape.rank(stage) == rank]
            held[rank] += sum(max(of_one_kind) for of_one_kind in zip(*mine, strict=True))
        return {rank: num_bytes - limit for rank, num_bytes in enumerate(held) if num_bytes > limit}

    def _needs(self, level: Level) -> list[_Need]:
        if level not in self._at:
            space, config = self.shape.space, self.shape.config
            always, one = (space.excess_at(level, config, held) for held in (0, 1))
            passes, (again, work) = space.passes(level, config), space.shared_bytes(level, config)
            late = space.late_bytes(level, config)
            self._at[level] = [
                _Need(
                    seconds=float(passes[i, j]),
                    always=float(always[i, j] - again[i, j] - work[i, j]) + self.shape.limit,
                    kept=int((one - always)[i, j]),
                    late=int(late[i, j]),
                    shared=(float(again[i, j]), float(work[i, j])),
                )
                for i, j in self._intervals
            ]
        return self._at[level]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """Of one stage: seconds of both passes; bytes that it always holds, those kept per microbatch in flight, what I
    adds to these until W, and those that the stages of one device share (what recomputation makes again, workspace).
    """

    seconds: float
    always: float
    kept: int
    late: int
    shared: tuple[float, float]


def shard_of(level: Level) -> Shard:
    """How a level divides the state among replicas."""
    return level.zero, level.reshard


def uniform_pipeline_s(count: int, ranks: int, stages: int, whole_s: float) -> float:
    """Seconds of an interleaved pipeline whose passes of the whole model take `whole_s` (Narayanan et al. 2021)."""
    return (count + (ranks - 1) * ranks / stages) * whole_s / ranks
