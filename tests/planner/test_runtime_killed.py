"""A rank that is killed from outside, as by `kill -9` or the kernel's out-of-memory killer."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("torch")

from runnable_models import Loader
from running_plans import SKIP, TIMEOUT_S, assert_gone, cut, started  # noqa: F401

from planner.errors import RunError
from planner.runtime import ExecutorKind, run

MANY = 10_000
"""Steps: the run is in the middle of them when it dies."""


@pytest.mark.parametrize("executor", [ExecutorKind.TORCH, ExecutorKind.OWN])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_killed_rank_is_named_and_all_others_end(started: list[int], executor: ExecutorKind, rank: int) -> None:  # noqa: F811
    def kill(done: int, total: int, loss: float) -> None:
        if done == 2:
            os.kill(started[rank], signal.SIGKILL)

    plan = cut(SKIP, (1, 3), num_microbatches=6)
    with pytest.raises(RunError, match=rf"^rank {rank} \(stage {rank}, .*\) failed: was killed by signal 9"):
        run(plan, Loader("skip_model"), num_steps=MANY, timeout_s=TIMEOUT_S, executor=executor, on_progress=kill)
    assert_gone(started, count=3)
