"""What a MILP solver is to `milp`: numbers in, an answer out that is checked by the caller.

Solvers read the MPS file that PuLP writes into a private folder, so that all solve the same model. Nothing but numbers
reaches them: no names of the user's, no free-form options. Nothing that they say is believed unchecked: values are
handed over only with a solution, and what they mean is priced again by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

MODEL_FILE = "model.mps"


class SolverStatus(StrEnum):
    """How a solver ended. `feasible`: a limit was reached with a solution; `limit`: without one."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solver found: values by variable name (empty without a solution), a lower bound or None, its words."""

    status: SolverStatus
    values: Mapping[str, float]
    bound: float | None
    words: str = ""


class MilpSolver(Protocol):
    """One solver. `name` is how reports call it."""

    name: str

    def available(self) -> bool:
        """Whether it can run here."""

    def version(self) -> str:
        """Name and version for reports."""

    def solve(self, model: Any, *, limit_s: float, seed: int, start: Mapping[str, float]) -> Answer:
        """Minimise a `pulp.LpProblem`. `start` holds the integer variables of a known solution; may be empty."""


def less(bound: float | None, margin: float) -> float | None:
    """The bound with a relative margin taken off (absolute below 1)."""
    return None if bound is None else bound - margin * max(1.0, abs(bound))
