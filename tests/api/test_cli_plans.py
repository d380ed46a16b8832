"""Commands that open a plan: estimate, simulate, export, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import GPT2, Call, call, plan_file

from api.http.answers import EstimateAnswer
from api.plan_file import PlanFile
from planner import Timeline, codec
from planner.errors import InputError

__all__ = ["call"]


@pytest.fixture
def planned(call: Call, tmp_path: Path) -> Path:
    """A plan of two stages, in a file."""
    path = tmp_path / "plan.json"
    assert call(*GPT2, "--num-stages", "2", "--microbatch", "2", "-o", path).status == 0
    return path


def test_an_estimate_gives_the_numbers_of_the_plan_again(call: Call, planned: Path) -> None:
    said = call("estimate", planned, "--json")
    answer = codec.loads(EstimateAnswer, said.out)
    assert said.status == 0
    assert answer.violations == ()
    assert answer.estimate == plan_file(planned).result.estimate


def test_the_tables_of_estimate_are_those_of_plan(call: Call, planned: Path) -> None:
    again, first = call("estimate", planned).out, call(*GPT2, "--num-stages", "2", "--microbatch", "2").out
    assert again.splitlines()[:15] == first.splitlines()[:15]
    assert "throughput" in again


def test_a_bare_result_or_plan_needs_its_problem(call: Call, planned: Path, tmp_path: Path) -> None:
    held = plan_file(planned)
    problem = tmp_path / "problem.json"
    problem.write_text(codec.dumps(held.problem))
    expected = call("estimate", planned).out
    for name, noun in (("result", held.result), ("plan", held.result.plan)):
        bare = tmp_path / f"{name}.json"
        bare.write_text(codec.dumps(noun))
        assert "--problem" in call("estimate", bare).err
        assert call("estimate", bare, "--problem", problem).out == expected


def write(path: Path, held: PlanFile) -> None:
    path.write_text(codec.dumps(held))


def with_less_memory(held: PlanFile) -> PlanFile:
    cluster = held.problem.cluster
    devices = tuple(replace(device, free_memory_bytes=2**20) for device in cluster.devices)
    problem = replace(held.problem, cluster=replace(cluster, devices=devices))
    return with_plan(replace(held, problem=problem), problem_fingerprint=codec.fingerprint(problem))


def with_plan(held: PlanFile, **changes: Any) -> PlanFile:
    assert held.result.plan is not None
    return replace(held, result=replace(held.result, plan=replace(held.result.plan, **changes)))


def without_a_layer(held: PlanFile) -> PlanFile:
    assert held.result.plan is not None
    first, *others = held.result.plan.stages
    return with_plan(held, stages=(replace(first, layers=first.layers[1:]), *others))


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (with_less_memory, 3, "memory"),
        (without_a_layer, 2, "layers"),
        (lambda held: with_plan(held, num_microbatches=3), 2, "batch"),
        (lambda held: with_plan(held, schedule="zigzag"), 2, "schedule"),
    ],
    ids=["memory", "layer", "batch", "schedule"],
)
def test_violations_are_listed_and_decide_the_status(
    change: Callable[[PlanFile], PlanFile], status: int, code: str, call: Call, planned: Path
) -> None:
    write(planned, change(plan_file(planned)))
    said = call("estimate", planned)
    assert said.status == status
    assert f"violation: {code}: " in said.err
    answer = codec.loads(EstimateAnswer, call("estimate", planned, "--json").out)
    assert answer.violations[0].code == code
    assert (answer.estimate is None) == (status == 2)


def test_a_malformed_plan_is_not_simulated_or_exported(call: Call, planned: Path) -> None:
    write(planned, without_a_layer(plan_file(planned)))
    for words in (("simulate", planned), ("export", planned, "--to", "chrome_trace")):
        said = call(*words)
        assert (said.status, said.out) == (2, "")
        assert "is in no stage" in said.err


def test_simulate_draws_every_lane_to_scale(call: Call, planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = call("simulate", planned)
    timeline = codec.loads(Timeline, call("simulate", planned, "--json").out)
    bars = [line for line in said.out.splitlines() if line.endswith("|")]
    assert said.status == 0
    assert len(bars) == len(timeline.lanes) == 2
    assert {len(bar) for bar in bars} == {100}
    assert all("0" in bar and set(bar.split("|")[1]) & {"a", "k"} for bar in bars)  # W may hold a whole backward pass


def test_simulate_says_how_many_lanes_are_left_out(call: Call, planned: Path) -> None:
    said = call("simulate", planned, "--lanes", "1")
    assert "1 more lanes" in said.out


def test_export_writes_to_standard_output_or_a_file(call: Call, planned: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    written = call("export", planned, "--to", "chrome_trace", "-o", trace)
    printed = call("export", planned, "--to", "chrome_trace")
    assert (written.status, written.out, printed.status) == (0, "", 0)
    assert trace.read_text() == printed.out
    assert json.loads(printed.out)["traceEvents"]


def test_a_plan_of_a_recorded_model_says_why_it_cannot_be_run(call: Call, planned: Path) -> None:
    said = call("run", planned)
    assert (said.status, said.out) == (2, "")
    assert "--model" in said.err


def test_a_result_without_a_plan_cannot_be_opened(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    assert call("plan", "llama-3-70b", "--cluster", "2xL4", "--global-batch", "8", "-o", path).status == 3
    said = call("estimate", path)
    assert said.status == 2
    assert "holds no plan (its status is infeasible)" in said.err


@pytest.mark.parametrize("header", [True, False])
def test_a_problem_in_place_of_a_plan_says_what_to_do(header: bool, call: Call, planned: Path, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    values = codec.parse(codec.dumps(plan_file(planned).problem))
    path.write_text(json.dumps(values if header else {k: v for k, v in values.items() if k != "document"}))
    said = call("estimate", path)
    assert said.status == 2
    assert "this is a problem and holds no plan: plan it first" in said.err


@pytest.mark.parametrize("text", ["[1]", '{"document": "problem"}', "{", "\x00", '{"stages": 1}'])
def test_what_is_no_plan_is_refused(text: str, call: Call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    said = call("estimate", path)
    assert said.status == 2
    assert said.err.startswith("error: ")


def test_a_plan_file_reads_back_equal(planned: Path) -> None:
    held = plan_file(planned)
    assert codec.loads(PlanFile, codec.dumps(held)) == held
    with pytest.raises(InputError, match="plan_file"):
        codec.loads(PlanFile, '{"document": "plan"}')
