"""Four independent exact methods on random bottleneck problems, with every bound and every plan between them.

`python -m benchmarks.agreement` runs the same checks on as many problems as one likes; docs/benchmarks.md has a result.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import agreement


@pytest.fixture(autouse=True)
def _both_solvers() -> None:
    pytest.importorskip("highspy")


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_all_exact_methods_agree_and_no_bound_or_plan_crosses_the_optimum(seed: int) -> None:
    assert agreement.row(seed, most_plans=300, repeat=seed % 4 == 0)["wrong"] == []
