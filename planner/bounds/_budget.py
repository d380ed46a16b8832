"""How much a bound that needs a solver may spend: seconds, a seed, a solver."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from planner.solvers.base import MilpSolver
from planner.solvers.cbc import Cbc
from planner.solvers.highs import Highs


class Budget:
    """Seconds left on a clock (wall time), the seed of all randomness, the solver to use (empty: HiGHS, else CBC).

    Benchmarks count CPU seconds instead (`clock=time.process_time`), so that a busy machine changes nothing.
    """

    def __init__(
        self,
        limit_s: float = math.inf,
        *,
        seed: int = 0,
        solver: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seed, self._solver, self._clock = seed, solver, clock
        self._end = clock() + limit_s

    def left_s(self) -> float:
        """Seconds until the limit, never negative."""
        return max(0.0, self._end - self._clock())

    def expired(self) -> bool:
        """Whether the limit is reached."""
        return self.left_s() <= 0.0

    def part(self, share_s: float) -> Budget:
        """At most `share_s` seconds of what is left."""
        return Budget(min(share_s, self.left_s()), seed=self.seed, solver=self._solver, clock=self._clock)

    def solver(self) -> MilpSolver | None:
        """The solver, None when it is not there."""
        known: tuple[MilpSolver, ...] = (Highs(), Cbc())
        return next((s for s in known if self._solver in ("", s.name) and s.available()), None)
