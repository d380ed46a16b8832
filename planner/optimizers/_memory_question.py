"""The memory question of goals and remedies: on how few devices something fits, exactly on chains (`_chain_memory`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.costs.model import CostModel
from planner.errors import InputError, LimitError
from planner.joint import settled, variants
from planner.optimizers._chain_memory import fewest_groups
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers.base import Clock, SearchContext, divisors, mixes_devices
from planner.options import Replication, SearchOptions
from planner.plan import Plan
from planner.problem import Problem
from planner.verify import verify
from planner.workload import ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """At least `at_least` devices are needed (None: no number of them suffices); `plan` is one that fits on `most`.

    Without a plan the question is open where `at_least` is a number.
    """

    at_least: int | None
    most: int | None
    plan: Plan | None

    @property
    def refuted(self) -> bool:
        """Whether it is proven that nothing fits."""
        return self.at_least is None


def fewest_devices(problem: Problem, options: SearchOptions) -> Fewest:
    """The memory question over all variants, batches and degrees that the request allows. Time plays no part."""
    least, most, best = None, None, None
    proof = _is_proof(problem, options)
    for context in contexts(problem, options):
        for batch in context.batches():
            for degrees in degree_sets(context, batch):
                try:
                    found = _chain(context, batch, degrees)
                except LimitError:
                    found, proof = None, False
                if found is None:
                    continue
                groups, plan = found
                devices = groups * context.problem.workload.tensor * context.problem.workload.context
                least = devices if least is None else min(least, devices)
                if plan is not None and (most is None or devices < most):
                    most, best = devices, plan
    return Fewest(at_least=least if proof else 1, most=most, plan=best)


def contexts(problem: Problem, options: SearchOptions) -> Iterator[SearchContext]:
    """One context per choice of the degrees that are searched."""
    clock = Clock(options.time_limit_s)
    options = settled(problem, options)
    for variant in variants(problem, options):
        yield SearchContext(problem=variant, options=options, costs=CostModel(variant), clock=clock)


def degree_sets(context: SearchContext, batch: tuple[int, int]) -> list[tuple[int, ...]]:
    """Replication degrees that may stand together in one plan."""
    classes = device_classes(context.problem, context.problem.workload.tensor)
    most = max((len(groups) for groups in classes), default=0)
    if context.options.replication is Replication.NONE or not most:
        return [(1,)] if most else []
    dealt = context.options.replica_mode is ReplicaMode.DEALT
    degrees = [d for d in divisors(batch[0]) if d <= most] if not dealt else list(range(1, min(most, batch[1]) + 1))
    return [(d,) for d in degrees] if context.options.replication is Replication.EQUAL else [tuple(degrees)]


def _chain(context: SearchContext, batch: tuple[int, int], degrees: tuple[int, ...]) -> tuple[int, Plan | None] | None:
    """(groups, the plan on them where the relaxation is one and it verifies)."""
    space = ChainSpace(context, context.schedules[0], batch, degrees)
    found = fewest_groups(space, context.options.num_stages)
    if found is None:
        return None
    if len(space.classes) > 1 or space.dealt:
        return found[0], None
    plan = space.plan(found[1], idle_last=True)
    return found[0], plan if _verifies(plan, context) else None


def _verifies(plan: Plan, context: SearchContext) -> bool:
    try:
        return not verify(plan, context.problem, context.costs)
    except InputError:
        return False


def _is_proof(problem: Problem, options: SearchOptions) -> bool:
    """Whether the relaxation covers every plan: stages are intervals of a chain, on devices of one kind each."""
    context = SearchContext(problem=problem, options=options, costs=CostModel(problem), clock=Clock(1.0))
    return problem.index.is_chain() and not mixes_devices(context)
