"""The path bound: the pipeline theorem along one path of any graph, without tables.

Take a path of layers. In any plan its layers lie in stages in order, and those stages depend on each other like a
chain. So with the theorem of `planner.bounds.pipeline`, every stage s that holds path layers has

    T >= least passes of the path layers before it + M (F_s + B_s) + idle(least passes of the path layers after it)

with the idle time that `planner.bounds._idle` proves for the schedule. Whether a division of the path stays below a
value V is decided by reaching as far as possible:

    reach(d) = max over degrees r of the farthest end of a stage on r groups that starts at reach(d - r)

Starting farther is never worse: what a later start adds to the sum before the stage and to its idle time is at most M
times the passes of the layers left out. With a split backward only forwards count before the stage, and no idle time
is known. Several stages per device group are not covered. So if reach(all groups) is not the end of the path, no plan
takes V or less. O(groups x degrees x log layers) per V.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

from planner.bounds._bisect import Question, largest_refuted
from planner.bounds._idle import IdleRule, idle_rule
from planner.bounds._layers import longest_path_before
from planner.bounds.base import BOUNDS, BoundQuery, lowered
from planner.costs.parts import carries_gradient
from planner.options import Objective
from planner.workload import ReplicaMode

RELATIVE_STEP = 1e-5


@BOUNDS.register
class PathBound:
    """The theorem along the longest path, for graphs of any shape and size."""

    name = "path"

    def objective_s(self, query: BoundQuery) -> float | None:
        """Bounds no closed form."""
        return None

    def iteration_s(self, query: BoundQuery) -> float | None:
        """Bound on the simulated iteration time: the smallest over batches and allowed schedules."""
        if query.objective is not Objective.ITERATION_TIME or query.virtual:
            return None
        questions = [question for batch in query.batches for question in path_questions(query, batch)]
        refuted = largest_refuted(questions, 0.0, _ceiling(query), RELATIVE_STEP, query.expired)
        return lowered(refuted)


def path_questions(query: BoundQuery, batch: tuple[int, int]) -> list[Question]:
    """Per allowed schedule, whether a division of the longest path stays at or below a value."""
    path, groups = _path(query, *batch), sum(query.groups.values())
    return [partial(_reaches_the_end, path, rule, groups) for rule in rules_of(query)]


def rules_of(query: BoundQuery) -> list[IdleRule]:
    """What is known of the idle time under each allowed schedule, once each."""
    dealt, trains = query.replica_mode is ReplicaMode.DEALT, query.problem.training is not None
    names = [""] if query.splits_backward else query.schedules
    return list(dict.fromkeys(idle_rule(name, dealt=dealt, trains=trains) for name in names))


def _ceiling(query: BoundQuery) -> float:
    """What some plan takes: the known one, else all layers one after the other for every microbatch, three times."""
    if math.isfinite(query.iteration_upper_s):
        return query.iteration_upper_s
    size, count = query.batches[0]
    slowest = max(sum(row) for row in query.passes(size, 1))
    return 3.0 * count * slowest


@dataclass(frozen=True, kw_only=True)
class _Path:
    """Running sums along the path: least passes, and forward and backward seconds per degree."""

    before: list[float]
    forward: dict[int, list[float]]
    backward: dict[int, list[float]]
    count: int
    dealt: bool

    @cached_property
    def _least_busy(self) -> tuple[float, float]:
        """The longest that a layer keeps its stage busy, and the groups' busy seconds together, at best degrees."""
        alone, together = 0.0, 0.0
        for i in range(len(self.before) - 1):
            busy = [
                (
                    d,
                    self._share(d)
                    * (self.forward[d][i + 1] - self.forward[d][i] + self.backward[d][i + 1] - self.backward[d][i]),
                )
                for d in self.forward
            ]
            alone = max(alone, min(seconds for _, seconds in busy))
            together += min(d * seconds for d, seconds in busy)
        return alone, together

    def refuted_by_work(self, groups: int, value: float) -> bool:
        """Whether some layer alone, or all of them on all groups, take longer than `value`."""
        alone, together = self._least_busy
        return max(alone, together / groups) > value * (1 + 1e-9)

    def _share(self, degree: int) -> int:
        """Microbatches that the busiest replica runs."""
        return math.ceil(self.count / degree) if self.dealt else self.count

    def end(self, start: int, degree: int, value: float, idle: IdleRule, groups_after: int) -> int:
        """The farthest end of a stage from `start` that stays at or below `value`."""
        forward, backward = self.forward[degree], self.backward[degree]
        share = self._share(degree)

        def reached(end: int) -> float:
            f, b = forward[end] - forward[start], backward[end] - backward[start]
            rest = self.before[-1] - self.before[end]
            return self.before[start] + share * (f + b) + float(idle(rest, f, b, groups_after, self.count))

        steps = range(start, len(self.before))
        return start + max(0, bisect_right(steps, value * (1 + 1e-12), key=reached) - 1)


def _reaches_the_end(path: _Path, rule: IdleRule, groups: int, value: float) -> bool:
    """Whether the relaxed division reaches the end of the path.

    reach(d) is looked at again only where it can differ from reach(d - 1): a stage may begin at a new place, or fewer
    groups follow than microbatches can be in flight.
    """
    if path.refuted_by_work(groups, value):
        return False
    reach, known, awake = [0] * (groups + 1), dict[tuple[int, int, int], int](), set(path.forward)
    for used in range(1, groups + 1):
        reach[used] = reach[used - 1]
        after = min(groups - used, path.count - 1)
        if used not in awake and after == path.count - 1:
            continue
        for degree in path.forward:
            if degree <= used:
                key = (reach[used - degree], degree, after)
                if key not in known:
                    known[key] = path.end(reach[used - degree], degree, value, rule, after)
                reach[used] = max(reach[used], known[key])
        if reach[used] >= len(path.before) - 1:
            return True
        if reach[used] > reach[used - 1]:
            awake.update(used + degree for degree in path.forward)
    return False


def _path(query: BoundQuery, size: int, count: int) -> _Path:
    both = {degree: query.both_passes(size, degree) for degree in query.degrees(size, count)}
    least_of = {
        degree: tuple([min(row) for row in zip(*(kind[way] for kind in types), strict=True)] for way in (0, 1))
        for degree, types in both.items()
        if types
    }
    forward_only = query.splits_backward
    sums = [ways[0] if forward_only else [f + b for f, b in zip(*ways, strict=True)] for ways in least_of.values()]
    least = [min(row) for row in zip(*sums, strict=True)]
    layers = _longest_path(query, least)
    return _Path(
        before=list(accumulate((least[i] for i in layers), initial=0.0)),
        forward={r: list(accumulate((ways[0][i] for i in layers), initial=0.0)) for r, ways in least_of.items()},
        backward={r: list(accumulate((ways[1][i] for i in layers), initial=0.0)) for r, ways in least_of.items()},
        count=count,
        dealt=query.replica_mode is ReplicaMode.DEALT,
    )


def _longest_path(query: BoundQuery, seconds: list[float]) -> list[int]:
    """Positions of the layers of a longest path of `seconds`, in order."""
    index, training = query.problem.index, query.problem.training is not None
    before = longest_path_before(query, seconds)
    at = max(range(len(seconds)), key=lambda i: before[i] + seconds[i])
    path = [at]
    while before[at] > 0.0:
        sources = [index.tensors[t].source for t in index.inputs[at] if not training or carries_gradient(index, t)]
        at = next(s for s in sources if before[s] + seconds[s] >= before[at])
        path.append(at)
    return path[::-1]
