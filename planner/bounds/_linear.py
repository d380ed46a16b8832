"""Linear programs over variables in [0, 1], and lower bounds on their minimum that do not trust the solver.

A solver's duals y, right or wrong, prove a bound: for every x in the box with lo <= A x <= hi,

    c x  =  y A x + (c - y A) x  >=  sum_i min over [lo_i, hi_i] of y_i t  +  sum_j min over [l_j, u_j] of (c - y A)_j t

(Neumaier and Shcherbina 2004). HiGHS is asked for duals, and the sum is done here, so that its tolerances cost strength
and never soundness; only rounding of the sum remains, which MARGIN covers. CBC, which gives a number, is believed up to
the margin of `planner.solvers`. An infeasible program is one that is infeasible by more than tolerances: callers state
their requirements with a slack of SLACK.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.bounds._budget import Budget
from planner.solvers.base import SolverStatus
from planner.solvers.cbc import Cbc

Vector = NDArray[np.float64]

MARGIN = 1e-9
"""Relative to the sum of absolute values in a dual bound: what rounding may cost."""
SLACK = 1e-6
"""Relative slack on a requirement whose violation is taken as a proof: ten times the solvers' feasibility tolerance."""
LP_LIMIT_S = 10.0
"""A single LP that takes longer has no bound."""


@dataclass(slots=True)
class Linear:
    """Minimise `cost` over columns in their bounds, rows `lower <= row <= upper`. `integer` lists the binaries."""

    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integer: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)

    def add(self, cost: float = 0.0, *, low: float = 0.0, high: float = 1.0, integer: bool = False) -> int:
        """A new column; returns its number."""
        number = len(self.cost)
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        if integer:
            self.integer.append(number)
        return number

    def row(self, terms: Iterable[tuple[int, float]], low: float = -math.inf, high: float = math.inf) -> None:
        """low <= sum of factor * column <= high; terms of one column are added up."""
        merged: dict[int, float] = {}
        for column, factor in terms:
            merged[column] = merged.get(column, 0.0) + factor
        self.columns += merged.keys()
        self.factors += merged.values()
        self.starts.append(len(self.columns))
        self.row_low.append(low)
        self.row_high.append(high)

    def fix(self, column: int, value: float) -> None:
        """Both bounds at a value."""
        self.low[column] = self.high[column] = value


@dataclass(frozen=True, slots=True)
class LpAnswer:
    """A lower bound on the minimum (infinite: infeasible; minus infinity: none) and the solver's values, if any."""

    bound: float
    values: Vector | None


class Session:
    """One LP that is solved again and again with other column bounds."""

    def __init__(self, model: Linear, budget: Budget) -> None:
        self._model, self._budget = model, budget
        self._low, self._high = np.array(model.low), np.array(model.high)
        self.duals = DualBound(model)
        solver = budget.solver()
        self._highs = _loaded(model) if solver is not None and solver.name == "highs" else None

    def solve(self, low: Vector | None = None, high: Vector | None = None) -> LpAnswer:
        """The program with other bounds of its first columns."""
        count = 0 if low is None else len(low)
        lows, highs = self._low.copy(), self._high.copy()
        if low is not None and high is not None:
            lows[:count], highs[:count] = low, high
        if self._highs is None:
            return _with_cbc(self._model, lows, highs, self._budget)
        self._highs.changeColsBounds(len(lows), np.arange(len(lows), dtype=np.int32), lows, highs)
        return self._solved(lows, highs)

    def recost(self, cost: Sequence[float]) -> None:
        """Other costs of the first columns."""
        self._model.cost[: len(cost)] = cost
        self.duals.cost[: len(cost)] = cost
        if self._highs is not None:
            numbers = np.arange(len(cost), dtype=np.int32)
            self._highs.changeColsCost(len(cost), numbers, np.array(cost, dtype=float))

    def _solved(self, lows: Vector, highs: Vector) -> LpAnswer:
        assert self._highs is not None
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + LP_LIMIT_S)
        self._highs.run()
        kinds, status = importlib.import_module("highspy").HighsModelStatus, self._highs.getModelStatus()
        if status == kinds.kInfeasible:
            return LpAnswer(math.inf, None)
        solution = self._highs.getSolution()
        if status != kinds.kOptimal or not solution.dual_valid:
            self._highs.clearSolver()
            return LpAnswer(-math.inf, None)
        bound = self.duals.value(np.array(solution.row_dual), lows, highs)
        return LpAnswer(bound, np.array(solution.col_value))


class DualBound:
    """What row duals prove about a model."""

    def __init__(self, model: Linear) -> None:
        self.cost = np.array(model.cost)
        self._columns, self._factors = np.array(model.columns, dtype=np.int64), np.array(model.factors)
        self._rows = np.repeat(np.arange(len(model.row_low)), np.diff(model.starts))
        self._sides = np.array(model.row_low), np.array(model.row_high)

    def value(self, duals: Vector, lows: Vector, highs: Vector) -> float:
        """The bound within these column bounds, with the margin for rounding taken off."""
        sides = np.where(duals > 0, *self._sides)
        used = np.isfinite(sides) & (duals != 0.0)
        sides, duals = np.where(used, sides, 0.0), np.where(used, duals, 0.0)
        priced = duals[self._rows] * self._factors
        reduced = self.cost - np.bincount(self._columns, weights=priced, minlength=len(lows))
        gained, held = duals * sides, np.minimum(reduced * lows, reduced * highs)
        size = np.abs(gained).sum() + np.abs(held).sum() + np.abs(priced).sum()
        return float(gained.sum() + held.sum() - MARGIN * size)


def interior(model: Linear, budget: Budget, limit_s: float = LP_LIMIT_S) -> LpAnswer:
    """One LP by interior point, without crossover: quick on large ones, and its minimiser is from the middle of all.

    CBC, where HiGHS is not there, gives any minimiser.
    """
    solver = budget.solver()
    lows, highs = np.array(model.low), np.array(model.high)
    if solver is None or solver.name != "highs":
        return _with_cbc(model, lows, highs, budget)
    engine = _loaded(model)
    for key, value in {"solver": "ipm", "run_crossover": "off", "presolve": "on", "time_limit": limit_s}.items():
        engine.setOptionValue(key, value)
    engine.run()
    if engine.getModelStatus() == importlib.import_module("highspy").HighsModelStatus.kInfeasible:
        return LpAnswer(math.inf, None)
    solution = engine.getSolution()
    if not solution.value_valid or not solution.dual_valid:
        return LpAnswer(-math.inf, None)
    bound = DualBound(model).value(np.array(solution.row_dual), lows, highs)
    return LpAnswer(bound, np.array(solution.col_value))


def mip_bound(model: Linear, budget: Budget, start: Mapping[int, float] | None = None) -> float | None:
    """A lower bound on the minimum over the binaries: infinite when infeasible, None when nothing is proven."""
    solver = budget.solver()
    if solver is None or budget.expired():
        return None
    if all(model.low[column] == model.high[column] for column in model.integer):
        return _finite(Session(model, budget).solve().bound)  # solvers name no dual bound of what is no MIP
    known = {_name(column): value for column, value in (start or {}).items()}
    answer = solver.solve(_pulp(model), limit_s=budget.left_s(), seed=budget.seed, start=known)
    if answer.status is SolverStatus.INFEASIBLE:
        return math.inf
    if answer.bound is None or answer.status is SolverStatus.FAILED:
        return None
    return answer.bound


def _finite(bound: float) -> float | None:
    return None if bound == -math.inf else bound


def _loaded(model: Linear) -> Any:
    """A HiGHS object that holds the model: one thread, no presolve (its basis is used again)."""
    highspy = importlib.import_module("highspy")
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.cost), len(model.row_low)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = (np.array(v, dtype=float) for v in (model.cost, model.low, model.high))
    lp.row_lower_, lp.row_upper_ = (np.array(v, dtype=float) for v in (model.row_low, model.row_high))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(model.starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(model.columns, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(model.factors, dtype=float)
    highs = highspy.Highs.__base__()  # the bare solver: the subclass prints a banner and installs callbacks
    for key, value in {"output_flag": False, "threads": 1, "presolve": "off", "random_seed": 0}.items():
        highs.setOptionValue(key, value)
    highs.passModel(lp)
    return highs


def _with_cbc(model: Linear, lows: Vector, highs: Vector, budget: Budget) -> LpAnswer:
    """The LP in a CBC process: slow, but everywhere."""
    cbc = Cbc()
    if not cbc.available():
        return LpAnswer(-math.inf, None)
    relaxed = Linear(
        model.cost, lows.tolist(), highs.tolist(), [], model.starts, model.columns, model.factors,
        model.row_low, model.row_high,
    )  # fmt: skip
    answer = cbc.solve(_pulp(relaxed), limit_s=LP_LIMIT_S, seed=budget.seed, start={})
    if answer.status is SolverStatus.INFEASIBLE:
        return LpAnswer(math.inf, None)
    if answer.status is not SolverStatus.OPTIMAL or answer.bound is None:
        return LpAnswer(-math.inf, None)
    return LpAnswer(answer.bound, np.array([answer.values.get(_name(c), 0.0) for c in range(len(model.cost))]))


def _name(column: int) -> str:
    return f"v{column}"


def _pulp(model: Linear) -> Any:
    """The model as PuLP has it."""
    pulp = importlib.import_module("pulp")
    made = pulp.LpProblem("bound", pulp.LpMinimize)
    binaries = set(model.integer)
    kinds = ["Integer" if column in binaries else "Continuous" for column in range(len(model.cost))]
    names = [
        made.add_variable(_name(column), low, high, cat=kind)
        for column, (low, high, kind) in enumerate(zip(model.low, model.high, kinds, strict=True))
    ]
    made += pulp.LpAffineExpression(list(zip(names, model.cost, strict=True)))
    for number, (low, high) in enumerate(zip(model.row_low, model.row_high, strict=True)):
        span = slice(model.starts[number], model.starts[number + 1])
        terms = [(names[c], f) for c, f in zip(model.columns[span], model.factors[span], strict=True)]
        if math.isfinite(high):
            made += pulp.LpAffineExpression(terms) <= high
        if math.isfinite(low):
            made += pulp.LpAffineExpression(terms) >= low
    return made
