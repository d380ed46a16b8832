"""`chain_dp`: dynamic programming over intervals of the topological order.

For every microbatch size, one schedule and a set of replication degrees it minimises the search model's closed form

    sum of passes and transfers + (M - 1) * period + max tail

exactly: for a cap on the tails and one on the period, a sweep of `_chain_kernel` minimises the sum; the caps are
lowered from solution to solution until no better value can follow (the epsilon-constraint method for the two maxima).
`throughput` needs one sweep that minimises the period itself.

It is exact on chains with interchangeable links; elsewhere it is a heuristic that prices its plans exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner.costs.objective import objective_s
from planner.errors import LimitError
from planner.joint import spreads_experts
from planner.optimizers._chain_kernel import Caps, Goal, Solution, Sweep
from planner.optimizers._chain_memory import fewest_groups
from planner.optimizers._chain_settings import Setting, asked_of, setting_of
from planner.optimizers._chain_space import ChainSpace, device_classes
from planner.optimizers._links import uniform_links
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext, divisors, mixes_devices
from planner.options import Objective, Replication
from planner.plan import Plan
from planner.workload import ReplicaMode

STRICTLY = 1 - 1e-12
"""The next cap lies this factor below the last one."""

MAX_CELLS = 4e8
"""Largest sweep (table cells) for which replication degrees may differ between stages: some seconds in numpy."""


NEAR = 1.02
"""Settings and numbers of stages this close to the best are searched for other candidates: the simulator may prefer
them."""

MAX_LAYERS = 1500
"""About 20 MB per table of intervals."""

ALTERNATIVES = 3
"""Stage counts per batch and degree that become candidates beside the best."""


@OPTIMIZERS.register
class ChainDP:
    """Exact on chains, for both objectives, with replication per stage, memory limits and unequal devices."""

    name = "chain_dp"
    searches_levels = True
    plans_groups = True
    searches_cuts = True

    def supports(self, context: SearchContext) -> str:
        """Works on every graph that its tables hold; layers between colocated ones in the order are kept with them."""
        if len(context.problem.index) > MAX_LAYERS:
            return f"chain_dp holds tables of up to {MAX_LAYERS} x {MAX_LAYERS} intervals"
        if not device_classes(context.problem, context.problem.workload.tensor):
            work = context.problem.workload
            return f"no class of equal devices has {work.tensor * work.context} of them (tensor x context degree)"
        return ""

    def search(self, context: SearchContext) -> Outcome:
        """Equal degrees first (fast, feeds the bound on the rest), then any degrees where that is affordable."""
        search = _Search(context)
        search.run()
        return search.outcome()


class _Search:
    def __init__(self, context: SearchContext) -> None:
        self.context = context
        self.found = {_key(c.plan): c for c in context.incumbents}
        self.best = min((c.objective_s for c in context.incumbents), default=math.inf)
        self.complete = True
        self.notes: list[str] = []
        self.uniform = uniform_links(context.problem)
        tensor = context.problem.workload.tensor
        self.classes = {view: device_classes(context.problem, tensor, by_memory=view) for view in (True, False)}
        self.by_memory = [True] if len(self.classes[True]) == len(self.classes[False]) else [True, False]

    def run(self) -> None:
        """All settings, those with the smallest floor first; none whose floor is no better than a known plan."""
        settings = sorted(self._settings(), key=lambda setting: setting.floor_s)
        for setting in settings:
            if setting.floor_s >= self.best * NEAR:
                break
            if self.context.clock.expired():
                self._ran_out()
                break
            self._search(setting)
        if not self.complete and not self.found:
            self._thriftiest()

    def _settings(self) -> list[Setting]:
        """Per batch all degrees together, where that is affordable, else each degree alone."""
        made, options, query = list[Setting](), self.context.options, asked_of(self.context)
        for batch in self.context.batches():
            degrees = self._degrees(batch)
            together = options.replication is Replication.ANY and self._affordable(degrees)
            if not together and options.replication is Replication.ANY:
                self._restricted()
            alone = [] if self.context.equal_done else [(degree,) for degree in degrees]
            sets = [tuple(degrees)] if together and degrees else alone
            made += [setting_of(query, batch, chosen, options.num_stages) for chosen in sets]
        return made

    def outcome(self) -> Outcome:
        """Candidates by value; exact when everything was searched and the problem is one where that means optimal."""
        ranked = sorted(self.found.values(), key=_rank)
        exact = self.complete and self._is_exact()
        proven = exact and bool(ranked)
        return Outcome(
            candidates=tuple(ranked[: max(1, self.context.options.num_finalists)]),
            exact=exact,
            scope=self._scope(),
            bound_s=ranked[0].objective_s if proven else None,
            finished=not self.context.clock.expired(),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _degrees(self, batch: tuple[int, int]) -> list[int]:
        """Replication degrees that the batch allows, on as many groups as the largest class has."""
        options, work = self.context.options, self.context.problem.workload
        dealt = options.replica_mode is ReplicaMode.DEALT
        most = max(len(groups) for classes in self.classes.values() for groups in classes)
        most = 1 if options.replication is Replication.NONE else most
        degrees = range(1, min(most, batch[1]) + 1) if dealt else [d for d in divisors(batch[0]) if d <= most]
        return [degree for degree in degrees if spreads_experts(work, options.replica_mode, degree)]

    def _affordable(self, degrees: list[int]) -> bool:
        classes = self.classes[True]
        states = math.prod(len(groups) + 1 for groups in classes)
        stages = min(len(self.context.problem.index), sum(len(groups) for groups in classes))
        cells = len(self.context.problem.index) ** 2 * stages * states * (len(degrees) * len(classes)) ** 2
        return cells <= MAX_CELLS or len(degrees) == 1

    def _restricted(self) -> None:
        self.complete = False
        self.notes.append(
            "chain_dp searched equal replication degrees only: with different degrees per stage the tables would be "
            "too large; use --replication equal to make that the question"
        )

    def _thriftiest(self) -> None:
        """With memory too tight for equal degrees, the plan on the fewest groups with any degrees."""
        for batch in self.context.batches():
            degrees = tuple(self._degrees(batch))
            space = ChainSpace(self.context, self.context.schedules[0], batch, degrees, classes=self.classes[True])
            if len(degrees) == 1 or len(space.classes) != 1 or space.dealt or self.context.clock.expired():
                continue
            try:
                fit = fewest_groups(space, self.context.options.num_stages)
            except LimitError:
                return
            if fit is not None:
                self._keep_plan(space.plan(fit[1], idle_last=self.uniform))

    def _search(self, setting: Setting) -> None:
        for by_memory in self.by_memory:
            space = ChainSpace(
                self.context,
                self.context.schedules[0],
                setting.batch,
                setting.degrees,
                by_memory=by_memory,
                classes=self.classes[by_memory],
            )
            if space.configs:
                for solution in self._solutions(space, setting):
                    self._keep(space, solution)
                self.complete &= not space.trades_tails

    def _ran_out(self) -> None:
        self.complete = False
        self.notes.append("chain_dp reached the time limit")

    def _solutions(self, space: ChainSpace, setting: Setting) -> Iterator[Solution]:
        if self.context.options.objective is Objective.THROUGHPUT:
            weight = 1.0 / space.num_microbatches if self.context.problem.training else 0.0
            cap = self.best * NEAR * space.microbatch_size
            found = self._swept(Sweep(space, Goal.PERIOD, Caps(period_s=cap, tail_weight=weight)))
            yield from [found] if found else []
        else:
            yield from self._by_tail(space, setting)

    def _by_tail(self, space: ChainSpace, setting: Setting) -> Iterator[Solution]:
        """Lower the cap on the tails until no better value can follow."""
        caps = Caps(period_s=self._period_worth(space, setting.passes_s, NEAR))
        smallest = self._swept(Sweep(space, Goal.TAIL, caps))
        if smallest is None:
            return
        cap = math.inf
        while not self.context.clock.expired():
            value, tail = math.inf, math.inf
            for solution in self._by_period(space, setting, cap, smallest.value):
                yield solution
                here = solution.sum_s + (space.num_microbatches - 1) * solution.period_s
                if here < value:
                    value, tail = here, solution.tail_s
            if not math.isfinite(value) or value + smallest.value >= self.best or tail <= smallest.value:
                return
            cap = tail * STRICTLY
        self._ran_out()

    def _by_period(self, space: ChainSpace, setting: Setting, tail: float, least_tail: float) -> Iterator[Solution]:
        """The smallest period first, then from the smallest sum on with a lower and lower cap on the period, until the
        caps meet."""
        rest = space.num_microbatches - 1
        near = self._period_worth(space, setting.passes_s + least_tail, NEAR)
        sweep = Sweep(space, Goal.PERIOD, Caps(period_s=near, tail_s=tail))
        fastest = self._swept(sweep)
        if fastest is None:
            return
        yield fastest
        yield from self._alternatives(sweep, rest)
        cap = self._period_worth(space, setting.passes_s + least_tail)
        while fastest.period_s <= cap and not self.context.clock.expired():
            solution = self._swept(Sweep(space, Goal.SUM, Caps(period_s=cap, tail_s=tail)))
            if solution is None:
                return
            yield solution
            if not rest or fastest.period_s >= solution.period_s:
                return
            worth = self._period_worth(space, solution.sum_s + least_tail)
            cap = min(solution.period_s, worth) * STRICTLY

    def _period_worth(self, space: ChainSpace, beside_s: float, slack: float = 1.0) -> float:
        """The longest period with which a plan that takes `beside_s` besides is as good as the best one known."""
        rest = space.num_microbatches - 1
        return max(0.0, (self.best * slack - beside_s) / rest) if rest else math.inf

    def _alternatives(self, sweep: Sweep, rest: int) -> list[Solution]:
        """The most promising other numbers of stages: finalists for the simulator."""
        if self.context.options.num_stages is not None:
            return []
        ranked = sorted(sweep.per_stage_count(), key=lambda s: s.sum_s + rest * s.period_s)
        return ranked[:ALTERNATIVES]

    def _most_stages(self, space: ChainSpace) -> int:
        return min(space.num_layers, sum(space.capacity))

    def _swept(self, sweep: Sweep) -> Solution | None:
        """The sweep's best; says so when the clock ended it."""
        solution = sweep.best(self._most_stages(sweep.space), self.context.options.num_stages)
        if not sweep.finished:
            self._ran_out()
        return solution

    def _keep(self, space: ChainSpace, solution: Solution) -> None:
        """Remember the solution's plan."""
        self._keep_plan(space.plan(solution.stages, idle_last=self.uniform))

    def _keep_plan(self, plan: Plan) -> None:
        """Price the plan with the cost model and remember it."""
        key = _key(plan)
        if key in self.found:
            return
        priced = self.context.costs.price(plan)
        value = objective_s(self.context.problem, priced, self.context.options.objective, self.context.search_model)
        self.found[key] = Candidate(plan=plan, objective_s=value)
        self.best = min(self.best, value)

    def _is_exact(self) -> bool:
        """Chain, interchangeable links, at most one tied pair."""
        problem = self.context.problem
        tied_pairs = len(problem.graph.tied) <= 1 and all(len(t.layers) <= 2 for t in problem.graph.tied)
        return problem.index.is_chain() and tied_pairs and self.uniform and not mixes_devices(self.context)

    def _scope(self) -> str:
        work = self.context.problem.workload
        size = work.tensor * work.context
        groups = f"groups of {size} consecutive devices" if size > 1 else "single devices"
        return f"stages of consecutive layers on {groups}, equal devices per stage"


def _key(plan: Plan) -> object:
    return plan.stages, plan.microbatch_size


def _rank(candidate: Candidate) -> tuple[float, int, int]:
    """Smaller value, then fewer devices, then fewer stages."""
    stages = candidate.plan.stages
    return candidate.objective_s, sum(len(g) for s in stages for g in s.replicas), len(stages)
