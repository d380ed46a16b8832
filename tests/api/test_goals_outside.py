"""Objectives through the command line and the service's tasks: the plan and the problem that it belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import GPT2, Call, call, plan_file

from api.http.limits import Limits
from api.http.tasks import export, plan
from planner import InputError, Objective, codec
from planner.result import PlanResult
from planner.verify import verify

__all__ = ["call"]

LIMITS = Limits(max_layers=1000, max_edges=2000, max_devices=64, max_time_limit_s=100.0)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--objective", "min_devices"), "attained"),
        (("--objective", "max_batch", "--num-microbatches", "4"), "microbatch size"),
        (("--objective", "latency"), "latency of one microbatch"),
        (("--objective", "pareto"), "the front over iteration time and devices used"),
        (("--objective", "iteration_time"), "what bounds it"),
    ],
)
def test_a_plan_file_holds_the_problem_of_its_plan(
    words: tuple[str, ...], shown: str, call: Call, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    said = call(*GPT2, *words, "-o", path)
    assert said.status == 0
    assert shown in " ".join(said.out.split())
    file = plan_file(path)
    assert file.result.plan is not None
    assert verify(file.result.plan, file.problem) == ()
    assert call("estimate", path).status == 0


def test_an_option_of_another_objective_is_bad_input(call: Call) -> None:
    said = call(*GPT2, "--max-iteration-time-s", "1")
    assert said.status == 2
    assert "max_iteration_time_s is for the objective min_devices" in said.err


def test_infeasible_shows_what_helps(call: Call) -> None:
    said = call(
        "plan", "gpt2-small", "--cluster", "2xA100-40G-SXM@1GiB", "--global-batch", "8", "--microbatch", "8",
        "--tensor", "1", "--zero", "0", "--recompute", "none",
    )  # fmt: skip
    assert said.status == 3
    assert "What helps" in said.out
    assert "GiB per device instead of 1.00 GiB" in " ".join(said.out.split())


@pytest.mark.parametrize("objective", [Objective.MIN_DEVICES, Objective.LATENCY])
def test_the_service_exports_for_the_changed_problem(objective: Objective) -> None:
    request = {
        "model": "gpt2-small",
        "cluster": "4xA100-40G-SXM",
        "workload": {"kind": "training", "global_batch_size": 16, "microbatch_size": 4},
        "options": {"objective": objective.value, "time_limit_s": 20.0},
    }
    body = json.dumps(request).encode()
    result = plan(body, LIMITS)
    assert result.changes is not None
    text = codec.dumps(result)
    assert codec.loads(PlanResult, text) == result
    assert export(body, text.encode(), LIMITS, "chrome_trace").status == 200


def test_the_service_refuses_a_goal_that_makes_no_sense() -> None:
    request = {
        "model": "gpt2-small",
        "cluster": "4xA100-40G-SXM",
        "workload": {"kind": "training", "global_batch_size": 16},
        "options": {"objective": "max_kv_tokens"},
    }
    with pytest.raises(InputError, match="this workload trains"):
        plan(json.dumps(request).encode(), LIMITS)
