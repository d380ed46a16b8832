"""`multilevel`: long chains by coarsening, `chain_dp`, and refinement around the cuts that it found.

Level 0 joins consecutive layers to at most `BLOCKS` blocks of about equal work. Each further level cuts only near the
cuts of the level before, with `STEPS` candidates on each side at a finer spacing, until the spacing is one
layer. Every level is a problem of some hundred layers, solved by `chain_dp` for whatever objective, degrees and memory
are asked.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

from planner.coarsening import Coarse, coarsened, fixed_boundaries
from planner.costs.model import CostModel
from planner.costs.objective import objective_s
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext
from planner.problem import Problem

FEW_LAYERS = 600
"""Up to this many layers `chain_dp` searches all places to cut."""
BLOCKS = 512
STEPS = 4


@OPTIMIZERS.register
class Multilevel:
    """A heuristic for chains (with side branches) of thousands of layers; prices its plans exactly."""

    name = "multilevel"
    searches_levels = True
    plans_groups = True

    def supports(self, context: SearchContext) -> str:
        """More layers than `chain_dp` takes in one table."""
        few = len(context.problem.index) <= FEW_LAYERS
        return f"multilevel is for more than {FEW_LAYERS} layers" if few else ""

    def search(self, context: SearchContext) -> Outcome:
        """Levels until every layer near a cut is a place to cut, or the clock expires."""
        problem = context.problem
        work = _work(problem)
        spacing = max(1, len(problem.index) // BLOCKS)
        boundaries = _even(problem, work)
        found: dict[str, Candidate] = {}
        while True:
            coarse = coarsened(problem, boundaries)
            plans = _solve(context, coarse, found)
            if spacing == 1 or not plans or context.clock.expired():
                break
            spacing = max(1, spacing // STEPS)
            boundaries = _near(problem, plans, spacing)
        ranked = sorted(found.values(), key=lambda c: c.objective_s)
        return Outcome(
            candidates=tuple(ranked[: context.options.num_finalists]),
            exact=False,
            scope="consecutive layers, cut near the cuts of coarser problems",
            finished=not context.clock.expired(),
            notes=(f"multilevel joined {len(problem.index)} layers to at most {BLOCKS} blocks and refined the cuts",),
        )


def _solve(context: SearchContext, coarse: Coarse, found: dict[str, Candidate]) -> list[Candidate]:
    """The level's best plans, as plans of the fine problem, priced there and remembered."""
    costs = CostModel(coarse.problem)
    outcome = OPTIMIZERS["chain_dp"].search(replace(context, problem=coarse.problem, costs=costs, incumbents=()))
    made = []
    for candidate in outcome.candidates[: context.options.num_finalists]:
        plan = coarse.refined(candidate.plan)
        priced = context.costs.price(plan)
        value = objective_s(context.problem, priced, context.options.objective, context.search_model)
        made.append(Candidate(plan=plan, objective_s=value))
        found.setdefault(repr((plan.stages, plan.microbatch_size)), made[-1])
    return sorted(made, key=lambda c: c.objective_s)


def _work(problem: Problem) -> list[float]:
    """Running sums of the layers' seconds on the first profile."""
    layers = problem.profiles[0].tables[0].layers
    costs = [layers.get(layer.id) for layer in problem.index.layers]
    return list(accumulate((c.forward_s + c.backward_s if c else 0.0 for c in costs), initial=0.0))


def _even(problem: Problem, work: list[float]) -> list[int]:
    """At most BLOCKS intervals of about equal work, beside the boundaries that must be."""
    steps = [bisect_left(work, work[-1] * k / BLOCKS) for k in range(1, BLOCKS)]
    n = len(problem.index)
    return sorted({*fixed_boundaries(problem), *(min(max(at, 1), n - 1) for at in steps)})


def _near(problem: Problem, plans: list[Candidate], spacing: int) -> list[int]:
    """Places to cut within STEPS steps of the best plan's cuts; the other plans' cuts stay as they are."""
    n, index = len(problem.index), problem.index
    found = fixed_boundaries(problem)
    for rank, candidate in enumerate(plans):
        ends = [max(index.positions(stage.layers)) + 1 for stage in candidate.plan.stages]
        near = range(-STEPS, STEPS + 1) if rank == 0 else range(1)
        found |= {min(max(end + step * spacing, 1), n) for end in ends for step in near}
    return sorted(found)
