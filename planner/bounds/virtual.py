"""The virtual bound: several stages per device group, by a linear program for every shape.

A shape is a batch, a replication degree for all ranks, P ranks, v >= 2 stages on each, a schedule. All shapes that the
query allows are tried; each is relaxed to a linear program over x[a, s, c], how many layers of kind a are in stage s
and recomputed by choice c (layers with equal prices are one kind, and may be divided and in any order):

    least T with, for every stage s,               T >= ahead_s + M load_s
                  for every rank at some moments,  what it always holds + sum of live_s kept_s of its stages <= memory
                  every stage has a layer, every layer has a stage

`load_s` are the passes of the stages from s on that s's rank runs (recomputation included), `ahead_s` the passes of all
stages before s: their forwards alone where the schedule splits the backward pass, and nothing where the graph is no
chain through which gradients return all the way.

Proof. No pass of the stages from s on that the rank runs begins before all stages before s have run a forward pass, one
after the other; M microbatches take M load_s; the last of these passes is the backward pass of some microbatch, which
all stages before s run after it, one after the other. (With a split backward the last may be a W, after which nothing
has to come.) The orders of a schedule are fixed, so that how many microbatches of each stage a rank holds after each
action is known: any such moment is a lower bound on its peak. Overheads, transfers, sums, buffers and workspace only
add. Weak duality makes a bound of whatever the solver says (`_linear`).

Orders for many microbatches begin as those for few, so that few are walked (a test compares them for every schedule).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planner.bounds._budget import Budget
from planner.bounds._crowded import Crowd, Kinds, crowded_s
from planner.bounds.base import BOUNDS, BoundQuery, lowered
from planner.bounds.pipeline import is_chain_both_ways
from planner.options import Objective
from planner.schedules import SCHEDULES, PipelineShape, Placement, is_legal, shape_on
from planner.solvers.highs import Highs
from planner.workload import ReplicaMode

MOST_LAYERS = 512
"""Programs of more stages take too long."""


@BOUNDS.register
class VirtualBound:
    """For schedules with several stages per device group on equal devices, the same replication on every rank."""

    name = "virtual"

    def objective_s(self, query: BoundQuery) -> float | None:
        """Bounds no closed form."""
        return None

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Bound on the simulated iteration time; None where other plans are asked for as well, or without HiGHS (a
        process of CBC for every program would take too long)."""
        return lowered(_least_s(query)) if _covers(query) else None


def _covers(query: BoundQuery) -> bool:
    return (
        query.objective is Objective.ITERATION_TIME
        and query.problem.training is not None
        and query.replica_mode is ReplicaMode.SPLIT
        and len(query.groups) == 1
        and len(query.problem.index) <= MOST_LAYERS
        and math.isfinite(query.iteration_upper_s)
        and Highs().available()
        and all(SCHEDULES[name].placement in (Placement.LOOP, Placement.V) for name in query.schedules)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """One shape; `busy_s`: what its ranks take at least when all share the work equally."""

    busy_s: float
    batch: tuple[int, int]
    degree: int
    schedule: str
    pipeline: PipelineShape


def _least_s(query: BoundQuery) -> float:
    """The least over all shapes, at most what a known plan takes; with what is known of them when time is over."""
    least, budget = query.iteration_upper_s, Budget(seed=query.seed)
    chain, kinds = is_chain_both_ways(query), dict[tuple[tuple[int, int], int], Kinds]()
    for shape in sorted(_shapes(query), key=lambda shape: (shape.busy_s, shape.pipeline.num_stages)):
        if shape.busy_s >= least:
            break
        if query.expired():
            return shape.busy_s
        key = shape.batch, shape.degree
        if key not in kinds:
            kinds[key] = Kinds.of(query, *key)
        crowd = Crowd(schedule=SCHEDULES[shape.schedule], shape=shape.pipeline, kinds=kinds[key], in_a_chain=chain)
        least = min(least, max(shape.busy_s, crowded_s(crowd, query.iteration_upper_s, budget)))
    return least


def _shapes(query: BoundQuery) -> Iterator[_Shape]:
    """All legal ones whose ranks are not too busy for the known plan's time anyway."""
    (groups,) = query.groups.values()
    for batch in query.batches:
        for degree in query.degrees(*batch):
            ((forward, backward),) = query.both_passes(batch[0], degree)
            work_s = batch[1] * (math.fsum(forward) + math.fsum(backward))
            fewest = max(1, math.floor(work_s / query.iteration_upper_s))
            for ranks in range(fewest, min(groups // degree, len(forward) // 2) + 1):
                yield from _of_ranks(query, batch, degree, ranks, work_s / ranks)


def _of_ranks(query: BoundQuery, batch: tuple[int, int], degree: int, ranks: int, busy_s: float) -> Iterator[_Shape]:
    for name in query.schedules:
        most = 2 if SCHEDULES[name].placement is Placement.V else len(query.problem.index) // ranks
        for per_rank in range(2, most + 1):
            pipeline = shape_on(SCHEDULES[name].placement, ranks, ranks * per_rank, batch[1])
            if not is_legal(SCHEDULES[name], pipeline):
                break  # the number of microbatches is wrong for all of them
            yield _Shape(busy_s=busy_s, batch=batch, degree=degree, schedule=name, pipeline=pipeline)
