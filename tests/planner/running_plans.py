"""Plans for the runtime's tests, and runs that are compared with the unpartitioned model."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from runnable_models import Loader

from planner.plan import Plan, Stage
from planner.runtime import ExecutorKind, RunReport, run
from planner.schedules import SCHEDULES, Placement, rank_at

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-5
TIMEOUT_S = 240.0
SKIP = ("blocks.0", "blocks.1", "blocks.2", "blocks.3", "loss")
GPT2 = ("model.transformer.wte", *(f"model.transformer.h.{i}" for i in range(4)), "model.lm_head", "loss")
BRANCHES = ("stem.linear", "left.0", "left.1", "right.0", "right.1", "join.linear", "loss")


def cut(
    layers: Sequence[str], cuts: tuple[int, ...], degrees: Sequence[int] = (), ranks: Sequence[int] = (), **options: Any
) -> Plan:
    """Stages cut before the layers at the given positions, with so many replicas each, on these ranks."""
    ends = (0, *cuts, len(layers))
    count = len(ends) - 1
    at = ranks or range(count)
    devices = [tuple((f"cpu{at[s]}.{r}",) for r in range(degrees[s] if degrees else 1)) for s in range(count)]
    stages = tuple(
        Stage(layers=tuple(layers[a:b]), replicas=group) for (a, b), group in zip(pairwise(ends), devices, strict=True)
    )
    return Plan(stages=stages, **{"schedule": "1f1b", "microbatch_size": 2, "num_microbatches": 4} | options)


def placed(layers: Sequence[str], cuts: tuple[int, ...], schedule: str, **options: Any) -> Plan:
    """Two ranks; stages where the schedule wants them."""
    placement = SCHEDULES[schedule].placement
    where = Placement.LOOP if placement is Placement.ANY else placement
    ranks = [rank_at(where, stage, 2) for stage in range(len(cuts) + 1)]
    return cut(layers, cuts, ranks=ranks, schedule=schedule, **options)


def checked(plan: Plan, factory: str, num_steps: int = 1, **options: Any) -> RunReport:
    """A run by our own executor, its first step equal to the unpartitioned model's in loss and every gradient."""
    loader = Loader(factory)
    options = {"executor": ExecutorKind.OWN, "timeout_s": TIMEOUT_S} | options
    report = run(plan, loader, num_steps=num_steps, check=True, **options)
    assert report.loss_relative_difference is not None
    assert report.gradient_max_difference is not None
    assert report.loss_relative_difference <= LOSS_TOLERANCE
    assert report.gradient_max_difference <= GRADIENT_TOLERANCE
    model = loader(2).runnable.model
    compared = {id(model.get_parameter(name)) for name in report.gradient_differences}
    assert compared == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return report


def passes(report: RunReport, lane: int) -> list[str]:
    """The actions of a rank in the order in which they ran."""
    assert report.timeline is not None
    labels = [span.label for span in report.timeline.lanes[lane].spans if span.category == "compute"]
    return [label for label in labels if not label.endswith("loss")]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of everything that the test starts."""
    pids: list[int] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            pids.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return pids


def assert_gone(pids: list[int], count: int = 2) -> None:
    """So many processes were started, and none of them exists any more."""
    assert len(pids) == count
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
