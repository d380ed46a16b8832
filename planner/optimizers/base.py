"""The protocol of optimizers: they return candidates, each a full plan, and say what they proved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from planner.costs.model import CostModel
from planner.joint import levels_of, may_run
from planner.options import GENERAL_MODELS, Level, Replication, SearchModel, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.registry import Registry
from planner.schedules import SCHEDULES, Placement
from planner.targets import Target, target_of
from planner.workload import Communication, ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan and its value in the search model, as the optimizer sees it (never reported as fact)."""

    plan: Plan
    objective_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an optimizer found: candidates from the best on, and what is proven.

    `exact` says that no plan which the request allows has a smaller objective than the first candidate (or, without
    candidates, that there is none), on whole groups of consecutive devices. `bound_s` is a lower bound over `scope`
    in the search model, None when nothing is proven; a scope may be narrower than the request.
    `finished` is False when a limit ended the search.
    """

    candidates: tuple[Candidate, ...]
    exact: bool
    scope: str
    bound_s: float | None = None
    finished: bool = True
    solver: str = ""
    notes: tuple[str, ...] = ()


class Clock:
    """Time left of one search."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s

    def stop(self) -> None:
        """Nothing is left from now on."""
        self._end = time.monotonic()

    def left_s(self, grace_s: float = 0.0) -> float:
        """Seconds until the limit and `grace_s` more, never negative."""
        return max(0.0, self._end + grace_s - time.monotonic())

    def expired(self) -> bool:
        """Whether the limit is reached."""
        return self.left_s() <= 0.0


@dataclass(frozen=True, kw_only=True)
class SearchContext:
    """One search: problem, options, the shared cost model, the clock, and candidates of earlier optimizers.

    `equal_done`: chain_dp has searched equal replication degrees for this problem to the end.
    """

    problem: Problem
    options: SearchOptions
    costs: CostModel
    clock: Clock
    incumbents: tuple[Candidate, ...] = ()
    equal_done: bool = False

    @property
    def search_model(self) -> SearchModel:
        """The named search model, or the one of the workload's communication."""
        if self.options.search_model is not None:
            return self.options.search_model
        blocking = self.problem.workload.communication is Communication.BLOCKING
        return SearchModel.BLOCKING if blocking else SearchModel.OVERLAPPED

    @property
    def schedules(self) -> tuple[str, ...]:
        """The schedules to try, the frugal one first."""
        return self._allowed(AUTOMATIC)

    @property
    def is_virtual(self) -> bool:
        """Whether the schedule that is asked for wants several stages per device group."""
        return is_virtual(self.options.schedule)

    @property
    def virtual_schedules(self) -> tuple[str, ...]:
        """The schedules with several stages per device group to try."""
        return (self.options.schedule,) if self.is_virtual else self._allowed(AUTOMATIC_VIRTUAL, named=False)

    def _allowed(self, automatic: tuple[str, ...], *, named: bool = True) -> tuple[str, ...]:
        """The schedule by name, or those of the automatic ones that the target has."""
        if self.options.schedule != "auto":
            return (self.options.schedule,) if named else ()
        known = tuple(name for name in automatic if self._knows_split or not SCHEDULES[name].splits_backward)
        return tuple(name for name in known if self.target is None or name in self.target.schedules)

    @cached_property
    def _knows_split(self) -> bool:
        """Whether the profiles say how backward passes split: else a split is an assumption, not for `auto` to make."""
        costs = (c for p in self.problem.profiles for table in p.tables for c in table.layers.values())
        return all(c.backward_input_s is not None for c in costs if c.backward_s)

    @property
    def target(self) -> Target | None:
        """The engine that shall run the plan."""
        return target_of(self.options)

    @cached_property
    def may_cut(self) -> list[bool]:
        """Per position, whether a stage may start with the layer there (and, last, end with the last layer)."""
        index, pinned = self.problem.index, set(self.options.cuts)
        starts = [True] * len(index) if self.target is None else self.target.starts(index)
        allowed = [(not pinned or layer.id in pinned) and may for layer, may in zip(index.layers, starts, strict=True)]
        return [True, *allowed[1:], True]

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """What a stage may spend time on to save memory: the workload's choice, or all where that is searched."""
        levels = levels_of(self.problem.workload, self.options)
        dealt = self.options.replica_mode is ReplicaMode.DEALT and self.options.replication is not Replication.NONE
        return tuple(level for level in levels if self.target is None or self.target.allows(level, dealt=dealt))

    def batches(self) -> list[tuple[int, int]]:
        """(microbatch size, number of microbatches) pairs that the workload allows, smallest microbatch first.

        Without those that cannot be split such that the expert degree has its groups.
        """
        return [batch for batch in self._batches() if may_run(self.problem, self.options, batch[0])]

    def _batches(self) -> list[tuple[int, int]]:
        work = self.problem.workload
        total = work.global_batch_size
        if work.microbatch_size is not None:
            return [(work.microbatch_size, total // work.microbatch_size)]
        if work.num_microbatches is not None:
            return [(total // work.num_microbatches, work.num_microbatches)]
        return [(size, total // size) for size in divisors(total)]


def is_virtual(schedule: str) -> bool:
    """Whether a schedule by name wants several stages per device group; `auto` does not want them."""
    return schedule != "auto" and SCHEDULES[schedule].placement in VIRTUAL


def mixes_devices(context: SearchContext) -> bool:
    """Whether a stage might have replicas on unequal devices (type or memory): most searches leave such plans out.

    They are allowed, so whoever leaves them out has not searched everything where this is true.
    """
    problem, options = context.problem, context.options
    used = [device for device in problem.cluster.devices if device.type in problem.profile_of]
    if len({(device.type, problem.memory_limits[device.id]) for device in used}) < 2:
        return False
    split = options.replica_mode is ReplicaMode.SPLIT
    alone = options.replication is Replication.NONE
    return not alone and any((size if split else count) > 1 for size, count in context.batches())


def divisors(number: int) -> list[int]:
    """All divisors, ascending. O(sqrt(number))."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


AUTOMATIC = ("1f1b", "gpipe", "zb_h1", "zb_h2")
"""The schedules that searches with one stage per device group try, the frugal one first."""
AUTOMATIC_VIRTUAL = ("interleaved_1f1b", "zb_v")
"""Those that searches with several stages per device group try."""
VIRTUAL = (Placement.LOOP, Placement.V)


class Optimizer(Protocol):
    """One way to search. `name` is how requests call it."""

    name: str

    def supports(self, context: SearchContext) -> str:
        """An empty string, or why this optimizer cannot work on the problem."""

    def search(self, context: SearchContext) -> Outcome:
        """Search until done or until the clock expires."""


def refusal(optimizer: Optimizer, context: SearchContext) -> str:
    """Why an optimizer cannot search here: the search model, several levels, groups inside stages, or its own reason.

    Optimizers without `search_models` search the models that price every plan; without `searches_levels`, only where
    recomputation and ZeRO stage are given; without `plans_groups`, only where no stage has context or expert groups,
    nor ZeRO 3 without resharding.
    """
    models = getattr(optimizer, "search_models", GENERAL_MODELS)
    if context.search_model not in models:
        return f"it searches {', '.join(models)} and not the search model {context.search_model}"
    if SCHEDULES[context.schedules[0]].placement is not Placement.LINE and not getattr(optimizer, "virtual", False):
        return f"it plans one stage per device group, the schedule {context.schedules[0]!r} wants several"
    if context.options.cuts and not getattr(optimizer, "searches_cuts", False):
        return "it knows no pinned cuts"
    if len(context.levels) > 1 and not getattr(optimizer, "searches_levels", False):
        return "it takes recomputation and the ZeRO stage as given: give both (--recompute and --zero)"
    if not getattr(optimizer, "plans_groups", False):
        work = context.problem.workload
        if work.context > 1 or work.expert > 1:
            return f"it knows no context or expert degree (they are {work.context} and {work.expert})"
        if not all(level.reshard for level in context.levels):
            return "it knows ZeRO 3 with resharding only"
    return optimizer.supports(context)


OPTIMIZERS: Registry[Optimizer] = Registry("optimizer", "planner.optimizers")
