"""`max_kv_tokens`: the plan whose stages hold keys and values of the most tokens (`costs.serving`), for inference.

A plan holds as many tokens as its tightest stage: free memory / bytes of keys and values per token, times the
replicas. The best partition is a max-min dynamic program over intervals and device classes (`_max_min`); among those
that hold as many tokens, a second pass takes the one with the fastest bottleneck stage. An even split loses where
embedding and head are heavy: the stages that hold them have less room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.codec import fingerprint
from planner.costs.compute import CANNOT_RUN_S
from planner.costs.intervals import Array
from planner.costs.serving import max_kv_tokens
from planner.errors import InputError
from planner.goals._max_min import Stages, best_worst
from planner.goals.base import GOALS, Answer, Planner, fastest, labelled
from planner.optimizers._chain_space import ChainSpace, Config
from planner.optimizers._links import uniform_links
from planner.optimizers._memory_question import contexts, degree_sets
from planner.optimizers.base import Clock, SearchContext, mixes_devices
from planner.options import Objective, SearchOptions
from planner.problem import Problem
from planner.result import Attained, PlanResult, SearchReport, Status
from planner.simulation.estimate import simulate_plan
from planner.verify import verify


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The best partition of one variant, batch and set of degrees."""

    tokens: int
    context: SearchContext
    space: ChainSpace
    stages: Stages


@GOALS.register
class MaxKvTokens:
    """Exact on chains whose stages run on equal devices."""

    name = Objective.MAX_KV_TOKENS.value

    def check(self, problem: Problem, options: SearchOptions) -> None:
        """Only a model that keeps keys and values, in inference, holds tokens."""
        if problem.training is not None:
            raise InputError(
                "the objective max_kv_tokens is for serving, and this workload trains: give an inference workload",
                pointer="/workload",
            )
        if not any(layer.kv_bytes_per_token for layer in problem.index.layers):
            raise InputError(
                "no layer of the model has kv_bytes_per_token, so nothing limits the tokens: give the bytes of keys "
                "and values per token, or seek another objective",
                pointer="/graph/layers",
            )

    def answer(self, problem: Problem, options: SearchOptions, plan: Planner) -> Answer:
        """The partition with the most tokens; where not even the weights fit, why."""
        clock = Clock(options.time_limit_s)
        found = max(_all(problem, options), key=lambda f: f.tokens, default=None)
        if found is None:
            result = plan(problem, fastest(options, clock))
            return Answer(problem=problem, result=labelled(result, Objective.MAX_KV_TOKENS))
        return Answer(problem=problem, result=_result(problem, found, options, clock))


def _all(problem: Problem, options: SearchOptions) -> Iterator[_Found]:
    for context in contexts(problem, options):
        for batch in context.batches():
            for degrees in degree_sets(context, batch):
                found = _best(context, ChainSpace(context, context.schedules[0], batch, degrees))
                if found is not None:
                    yield found


def _best(context: SearchContext, space: ChainSpace) -> _Found | None:
    """The most tokens, then the fastest of the partitions that hold as many."""
    tokens = {config: _tokens(space, config) for config in space.configs}
    most = best_worst(space, tokens.__getitem__, context.options.num_stages)
    if most is None:
        return None
    seconds = {config: -space.pass_s(config) for config in space.configs}
    quick = best_worst(space, lambda c: np.where(tokens[c] >= most[0], seconds[c], -np.inf), context.options.num_stages)
    assert quick is not None
    return _Found(tokens=int(most[0]), context=context, space=space, stages=quick[1])


def _tokens(space: ChainSpace, config: Config) -> Array:
    """[i, j]: tokens that a stage of layers i .. j-1 holds; -infinity where it does not fit or run."""
    sizes = np.array([0, *(layer.kv_bytes_per_token for layer in space.problem.index.layers)]).cumsum()
    per_token = -(-(sizes[None, :] - sizes[:, None]) // (space.tensor * space.work.context))
    free = -space.excess(config, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        held = np.where(per_token > 0, free // np.maximum(per_token, 1) * config.replicas, np.inf)
    runs = space.pass_s(config) < CANNOT_RUN_S
    return np.where((free >= 0) & runs, held, -np.inf)


def _result(problem: Problem, found: _Found, options: SearchOptions, clock: Clock) -> PlanResult:
    """The partition as a verified plan. What it holds is priced again by `costs.serving`."""
    plan = found.space.plan(found.stages, idle_last=uniform_links(problem))
    wrong = verify(plan, found.context.problem, found.context.costs)
    if wrong:
        raise InputError(f"the partition with the most tokens cannot run: {wrong[0].message}")
    held = max_kv_tokens(found.context.problem, plan, found.context.costs)
    exact = problem.index.is_chain() and not mixes_devices(found.context)
    proven = exact and held == found.tokens
    attained = Attained(
        quantity="kv_tokens",
        value=held,
        bound=max(held, found.tokens),
        proven=proven,
        method="max_min",
        scope="one stage of consecutive layers per group of equal devices",
    )
    report = SearchReport(
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective=Objective.MAX_KV_TOKENS.value,
        search_model=found.context.search_model.value,
        objective_s=None,
        bound_s=None,
        gap=None,
        certificates=(),
        optimizer="max_min",
        solver="",
        runtime_s=options.time_limit_s - clock.left_s(),
        seed=options.seed,
        notes=(f"keys and values of {held:,} tokens fit beside the weights",),
        attained=attained,
    )
    _, estimate = simulate_plan(found.context.problem, plan, found.context.costs)
    named = replace(plan, problem_fingerprint=fingerprint(problem))
    return PlanResult(plan=named, estimate=estimate, report=report)
