"""`milp`: mixed-integer programming over the partitions of any layer graph, with CBC or HiGHS.

One model per setting (number of stages, equal replication degree, batch): see `_milp_model`. It decides which layers
each stage holds, and which class of equal devices (type and memory) it runs on. Settings are tried in the order of a
simple lower bound, with the best plan so far as cut-off, and are skipped where the bound already excludes them. Every
solution becomes a Plan that `verify` checks and `planner.costs` prices: a solver's own objective is never reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from planner.costs.communication import Group
from planner.costs.objective import objective_s
from planner.optimizers._chain_space import device_classes
from planner.optimizers._milp_prices import Setting, SettingPrices, floor_of
from planner.optimizers._milp_scope import degrees, not_linear, searches_unequal_degrees, unequal_links
from planner.optimizers.base import OPTIMIZERS, Candidate, Outcome, SearchContext, mixes_devices
from planner.plan import Plan, Stage
from planner.solvers.base import Answer, MilpSolver, SolverStatus
from planner.solvers.cbc import Cbc
from planner.solvers.highs import Highs
from planner.verify import verify
from planner.workload import Recomputation

if TYPE_CHECKING:
    from planner.optimizers._milp_model import PartitionModel

Classes = tuple[SettingPrices, ...]
"""One setting, priced for each class of equal devices."""

MAX_BINARIES = 20_000
"""Settings with more binaries than this are left out (and nothing is proven then): the model alone takes too long."""

BINARIES_PER_S = 10_000
"""A model is written down in so many binaries a second, whatever the clock says meanwhile."""

MAX_REPAIRS = 20
"""So many partitions per setting may fail exact pricing by rounding before it counts as unsolved."""

CUTOFF_MARGIN = 1e-6
"""Relative tolerance of the cut-off: plans better than the best by less than this may be missed."""

MIN_SLICE_S = 0.5

STOPPED = (SolverStatus.FEASIBLE, SolverStatus.LIMIT)

USED_UP = 0.5
"""A solver that stops before this fraction of its limit was not stopped by it, and is not asked again."""

TIME_IS_UP = "milp reached the time limit"


@OPTIMIZERS.register
class Milp:
    """Exact (within solver tolerances, 1e-6 relative) on any graph and mix of device types, for equal degrees."""

    name = "milp"

    def __init__(self, solver: str = "") -> None:
        self._solver = solver

    def supports(self, context: SearchContext) -> str:
        """Links that are all alike, and prices that are linear in the layers of a stage."""
        if choose_solver(self._solver) is None:
            return "no MILP solver is installed: install highspy or a CBC binary"
        return unequal_links(context.problem) or not_linear(context.problem)

    def search(self, context: SearchContext) -> Outcome:
        """All settings, or as many as the time allows."""
        solver = choose_solver(self._solver)
        assert solver is not None
        search = _Search(context, solver)
        search.run()
        return search.outcome()


@dataclass(slots=True)
class _Search:
    context: SearchContext
    solver: MilpSolver
    found: list[Candidate] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    open: int = 0
    notes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Most promising settings first, in rounds: what is left over of the time goes to those that need more."""
        self.found += self.context.incumbents
        waiting = list(self._settings())
        while waiting:
            waiting.sort(key=lambda item: (item[0], item[1][0].setting.num_stages))
            waiting = self._round(waiting)

    def _round(self, waiting: list[tuple[float, Classes]]) -> list[tuple[float, Classes]]:
        """Each setting once. What is left: those whose share of the time was too short, with what is proven of them."""
        unsolved = []
        for number, (bound, prices) in enumerate(waiting):
            if not self._promising(bound):
                self.bounds.append(bound)
            elif self.context.clock.left_s() <= _num_binaries(prices) / BINARIES_PER_S:
                self._leave_open(bound, TIME_IS_UP)
            elif _num_binaries(prices) > MAX_BINARIES:
                self._leave_open(bound, f"milp left out settings of more than {MAX_BINARIES:,} binaries")
            else:
                proven = self._solve(prices, bound, waiting[number + 1 :])
                unsolved += [(proven, prices)] if proven is not None else []
        return unsolved

    def _promising(self, bound: float) -> bool:
        """Whether a setting with this bound may hold a better plan."""
        return bound < self.best * (1 - CUTOFF_MARGIN)

    @property
    def best(self) -> float:
        """The smallest objective so far."""
        return min((c.objective_s for c in self.found), default=math.inf)

    def outcome(self) -> Outcome:
        """Candidates by value. Bound and exactness are claimed only when all degrees that were asked for are equal."""
        equal = not searches_unequal_degrees(self.context)
        everything = equal and not mixes_devices(self.context)
        ranked = sorted(self.found, key=lambda c: (c.objective_s, len(c.plan.stages)))
        if not equal:
            self.notes.append("milp searched equal replication degrees only, and proves nothing about others")
        return Outcome(
            candidates=tuple(ranked[: self.context.options.num_finalists]),
            exact=everything and not self.open,
            scope="convex stages in order, equal devices per stage, equal replication degrees",
            bound_s=self._bound() if everything else None,
            finished=not self.context.clock.expired(),
            solver=self.solver.version(),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _bound(self) -> float | None:
        """The smallest bound of any setting: no plan in scope is better."""
        if not self.bounds or not self.found:
            return None
        return min(min(self.bounds), self.best)

    def _settings(self) -> Iterator[tuple[float, Classes]]:
        """Every setting with its floor, as far as the clock allows."""
        context = self.context
        classes = device_classes(context.problem, context.problem.workload.tensor)
        for size, count in context.batches():
            for replicas in degrees(context, (size, count), max(map(len, classes))):
                if context.clock.expired():
                    self._leave_open(0.0, TIME_IS_UP)
                    return
                most = min(len(context.problem.index), sum(len(groups) // replicas for groups in classes))
                first = Setting(
                    num_stages=1,
                    replicas=replicas,
                    microbatch_size=size,
                    num_microbatches=count,
                    schedule=context.schedules[0],
                )
                yield from self._numbers_of_stages(_priced(context, first, classes), most)

    def _numbers_of_stages(self, prices: Classes, most: int) -> Iterator[tuple[float, Classes]]:
        """The settings that differ in their number of stages, up to `most`."""
        floor, wanted = floor_of(prices), self.context.options.num_stages
        for stages in range(1, most + 1):
            if wanted in (None, stages):
                setting = replace(prices[0].setting, num_stages=stages)
                bound = floor.value_s(setting, self.context.options.objective)
                yield bound, tuple(each.at(setting) for each in prices)

    def _leave_open(self, bound: float, note: str) -> None:
        self.open += 1
        self.bounds.append(bound)
        self.notes.append(note)

    def _solve(self, prices: Classes, bound: float, others: list[tuple[float, Classes]]) -> float | None:
        """One setting; what is proven of it if its share of the time was too short, None if it is done with."""
        from planner.optimizers._milp_model import PartitionModel

        if math.isinf(bound):
            return None
        if prices[0].setting.num_stages == 1:
            self._judge_single(prices)
            return None
        model = PartitionModel(prices, self.context.options.objective, self.context.search_model)
        if math.isfinite(self.best):
            model.cut_off(self.best)
        for _ in range(MAX_REPAIRS):
            share_s = self._share_s(others)
            if share_s <= 0.0:
                return bound
            proven, answer, stopped = self._ask(prices, model, share_s)
            bound = max(bound, proven)
            found = (
                (model.partition.stage_of(answer.values), model.partition.kinds(answer.values)) if answer.values else ()
            )
            fault = self._judge(prices, *found) if found else ""
            if stopped and not fault:
                return bound
            if fault != "memory":
                self._conclude(prices, answer, bound, fault)
                return None
            model.partition.exclude(*found)
        self._leave_open(bound, "milp gave a setting up: its solutions exceed memory limits by rounding")
        return None

    def _ask(self, prices: Classes, model: PartitionModel, limit_s: float) -> tuple[float, Answer, bool]:
        """What the solver proves (nothing beyond the cut-off) and finds, and whether the limit is what stopped it."""
        cut_off, left_s = self.best, self.context.clock.left_s()
        answer = self.solver.solve(
            model.lp, limit_s=limit_s, seed=self.context.options.seed, start=self._start(prices, model)
        )
        proven = min(cut_off, answer.bound * model.unit_s) if answer.bound is not None else 0.0
        used_s = left_s - self.context.clock.left_s()
        return proven, answer, answer.status in STOPPED and used_s >= USED_UP * limit_s

    def _conclude(self, prices: Classes, answer: Answer, bound: float, fault: str) -> None:
        """Write down what an answer proves about its setting, or that it stays open."""
        if fault:
            self._leave_open(bound, f"milp: {self.solver.name} returned a partition that is not one ({fault})")
        elif answer.status is SolverStatus.INFEASIBLE:
            if math.isfinite(self.best):
                self.bounds.append(max(bound, self.best * (1 - CUTOFF_MARGIN)))
        elif answer.status is SolverStatus.OPTIMAL:
            self.bounds.append(bound)
        else:
            words = f"failed at {prices[0].setting.num_stages} stages: {answer.words}"
            self._leave_open(bound, f"milp: {self.solver.name} {words}")

    def _share_s(self, others: list[tuple[float, Classes]]) -> float:
        """An equal share of the time left for a setting and those of the others that a solver will still see."""
        left_s = self.context.clock.left_s()
        sharers = 1 + sum(
            self._promising(bound) and other[0].setting.num_stages > 1 and _num_binaries(other) <= MAX_BINARIES
            for bound, other in others
        )
        return min(left_s, max(MIN_SLICE_S, left_s / sharers))

    def _judge_single(self, prices: Classes) -> None:
        """All layers in one stage, on each class."""
        known = len(self.found)
        for kind in range(len(prices)):
            self._judge(prices, [0] * len(prices[0].problem.index), [kind])
        self.bounds += [min(c.objective_s for c in self.found[known:])] if self.found[known:] else []

    def _judge(self, prices: Classes, stage_of: list[int], kinds: list[int]) -> str:
        """Price the partition as a plan and keep it; the code of what is wrong with it otherwise."""
        plan = _plan(self.context, prices, stage_of, kinds)
        wrong = verify(plan, self.context.problem, self.context.costs)
        if wrong:
            return wrong[0].code
        priced = self.context.costs.price(plan)
        options = self.context.options
        value = objective_s(self.context.problem, priced, options.objective, self.context.search_model)
        self.found.append(Candidate(plan=plan, objective_s=value))
        return ""

    def _start(self, prices: Classes, model: PartitionModel) -> dict[str, float]:
        """The best known plan of the same setting."""
        setting = prices[0].setting
        for candidate in sorted(self.found, key=lambda c: c.objective_s):
            plan = candidate.plan
            same = len(plan.stages) == setting.num_stages and plan.microbatch_size == setting.microbatch_size
            kinds = [_kind(prices, stage) for stage in plan.stages]
            if same and None not in kinds:
                stage_of = {name: s for s, stage in enumerate(plan.stages) for name in stage.layers}
                layers = prices[0].problem.index.layers
                return model.partition.start(
                    [stage_of[layer.id] for layer in layers], [k for k in kinds if k is not None]
                )
        return {}


def _priced(context: SearchContext, setting: Setting, classes: list[list[Group]]) -> Classes:
    """The setting on every class that has the devices for a stage."""
    large = [groups for groups in classes if len(groups) >= setting.replicas]
    others = [[group for other in classes if other is not groups for group in other] for groups in large]
    return tuple(SettingPrices(context, setting, *parts) for parts in zip(large, others, strict=True))


def _kind(prices: Classes, stage: Stage) -> int | None:
    """The class on which a stage of a plan runs, None where the setting has no such stages."""
    if len(stage.replicas) != prices[0].setting.replicas:
        return None
    devices = {device for group in stage.replicas for device in group}
    of_class = (devices <= {device for group in entry.groups for device in group} for entry in prices)
    return next((c for c, inside in enumerate(of_class) if inside), None)


def _plan(context: SearchContext, prices: Classes, stage_of: list[int], kinds: list[int]) -> Plan:
    """Each stage on the next free device groups of its class."""
    layers, training, setting = context.problem.index.layers, context.problem.training, prices[0].setting
    free = [iter(entry.groups) for entry in prices]
    return Plan(
        stages=tuple(
            Stage(
                layers=tuple(layer.id for v, layer in enumerate(layers) if stage_of[v] == s),
                replicas=tuple(islice(free[kind], setting.replicas)),
                tensor=context.problem.workload.tensor,
                recomputation=training.recomputation if training else Recomputation.NONE,
                zero=training.zero if training else 0,
            )
            for s, kind in enumerate(kinds)
        ),
        schedule=setting.schedule,
        microbatch_size=setting.microbatch_size,
        num_microbatches=setting.num_microbatches,
        replica_mode=context.options.replica_mode,
    )


def _num_binaries(prices: Classes) -> int:
    choices = len(prices) if len(prices) > 1 else 0
    setting = prices[0].setting
    return len(prices[0].problem.index) * (setting.num_stages - 1) + choices * setting.num_stages


def choose_solver(name: str = "") -> MilpSolver | None:
    """The named solver, or HiGHS where it can be imported, else CBC; None when there is none."""
    solvers: tuple[MilpSolver, ...] = (Highs(), Cbc())
    for solver in solvers:
        if name in ("", solver.name) and solver.available():
            return solver
    return None
