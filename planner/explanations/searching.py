"""Short searches for explanations: is there a plan with this change, and how fast is it? No bounds, no certificates."""

from __future__ import annotations

from dataclasses import replace

from planner.costs.model import CostModel
from planner.errors import PlannerError
from planner.finalists import Finalist, finalists
from planner.joint import settled
from planner.optimizers.base import OPTIMIZERS, Clock, SearchContext, refusal
from planner.options import SEARCHED_OBJECTIVES, Objective, SearchOptions
from planner.portfolio import search
from planner.problem import Problem

QUICK = ("chain_dp", "multilevel")
"""Optimizers that answer soon, in order; the others run where neither can."""

NUM_FINALISTS = 3


def replanned(problem: Problem, options: SearchOptions, limit_s: float) -> Finalist | None:
    """The best verified plan of a short search, None when there is none or the change makes no sense."""
    try:
        settled_options = settled(problem, _quick(options, limit_s))
        context = _context(problem, settled_options, limit_s)
        chosen = next((name for name in QUICK if not refusal(OPTIMIZERS[name], context)), options.optimizer)
        context = replace(context, options=replace(settled_options, optimizer=chosen))
        return next(iter(finalists(context, search(context))), None)
    except PlannerError:
        return None


def _context(problem: Problem, options: SearchOptions, limit_s: float) -> SearchContext:
    return SearchContext(problem=problem, options=options, costs=CostModel(problem), clock=Clock(limit_s))


def _quick(options: SearchOptions, limit_s: float) -> SearchOptions:
    objective = options.objective if options.objective in SEARCHED_OBJECTIVES else Objective.ITERATION_TIME
    return replace(options, objective=objective, num_finalists=NUM_FINALISTS, time_limit_s=limit_s)
