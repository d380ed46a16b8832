"""`pipeplan`: exit statuses, errors, and what it imports."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from commandline import GPT2, INSTANCES, Call, call, plan_file

import planner.service
from planner import PlanResult, Problem, SearchReport, Status, codec
from planner.errors import LimitError, RunError

__all__ = ["call"]
EXTRAS = ("torch", "transformers", "fastapi", "starlette", "uvicorn", "httpx", "highspy")
HEAVY = (*EXTRAS, "numpy", "pulp", "pydantic", "networkx")


def modules_after(code: str, names: tuple[str, ...]) -> str:
    """Which of `names` a fresh interpreter has imported after `code`."""
    text = f"import sys; {code}; sys.stderr.write(str(sorted(set({names!r}) & set(sys.modules))))"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stderr


def test_the_command_line_starts_without_anything_heavy() -> None:
    assert modules_after("import api.cli", HEAVY) == "[]"


def test_planning_a_recorded_model_needs_none_of_the_extras() -> None:
    """HiGHS is used where it is there; this interpreter finds none."""
    hidden = "sys.modules['highspy'] = None"
    code = f"{hidden}; from api.cli import main; assert main({list(GPT2)!r}) == 0; del sys.modules['highspy']"
    assert modules_after(code, EXTRAS) == "[]"


def test_version(call: Call) -> None:
    said = call("--version")
    assert (said.status, said.out) == (0, f"pipeplan {version('pipeplan')}\n")


def test_every_command_has_help(call: Call) -> None:
    overview = call("--help")
    assert overview.status == 0
    for name in ("profile", "plan", "estimate", "simulate", "run", "export", "serve", "catalogue"):
        assert name in overview.out
        assert call(name, "--help").status == 0


BAD_INPUTS = {
    "no such command": (("bake",), "No such command 'bake'"),
    "no source": (("plan",), "Missing argument 'SOURCE'"),
    "unknown option": ((*GPT2, "--stages", "2"), "--stages"),
    "unknown choice": ((*GPT2, "--objective", "beauty"), "'iteration_time', 'throughput'"),
    "no such model": (("plan", "gpt2-smal", "--cluster", "local:2", "--global-batch", "8"), "did you mean gpt2-small"),
    "no such file": (("plan", "a/b.json", "--cluster", "local:2", "--global-batch", "8"), "No such file"),
    "no such device": (("plan", "gpt2-small", "--cluster", "2xH100-SXM", "--global-batch", "8"), "H100-80G-SXM"),
    "no devices": (("plan", "gpt2-small", "--cluster", "0xL4", "--global-batch", "8"), "at least 1"),
    "no cluster": (("plan", "gpt2-small", "--global-batch", "8"), "cluster"),
    "no batch": (("plan", "gpt2-small", "--cluster", "4xL4"), "--global-batch"),
    "microbatch does not divide": ((*GPT2, "--microbatch", "3"), "nearest that do: 2 and 4"),
    "microbatch is no number": ((*GPT2, "--microbatch", "few"), "neither a whole number nor auto"),
    "unknown schedule": ((*GPT2, "--schedule", "zigzag"), "use auto, 1f1b, custom"),
    "unknown optimizer": ((*GPT2, "--optimizer", "luck"), "chain_dp"),
    "more stages than devices": ((*GPT2, "--num-stages", "5"), "between 1 and 4"),
    "another sequence length": ((*GPT2, "--sequence-length", "512"), "1024"),
    "training option of an inference": ((*GPT2, "--inference", "--zero", "1"), "--zero"),
    "a folder that is not there": ((*GPT2, "-o", "no/such/folder/plan.json"), "does not exist"),
    "unknown format": ((*GPT2, "--format", "abacus"), "abacus"),
    "unknown exporter": (("export", "plan.json", "--to", "paper"), "chrome_trace"),
    "no such plan": (("estimate", "no-plan.json"), "cannot be read"),
    "a record has no seconds": (("profile", "gpt2-small"), "--device"),
    "sizes that are none": (("profile", "gpt2-small", "--device", "L4", "--microbatch-sizes", "1;2"), "1,2,4"),
}


@pytest.mark.parametrize(("words", "expected"), BAD_INPUTS.values(), ids=list(BAD_INPUTS))
def test_bad_input_is_said_in_two_lines_at_most(
    words: tuple[str, ...], expected: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = call(*words)
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert expected in said.err
    assert len(said.err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_infeasible_is_an_answer_with_status_3(call: Call) -> None:
    words = ("plan", "llama-3-70b", "--cluster", "2xL4", "--global-batch", "8")
    said = call(*words)
    assert said.status == 3
    assert said.err == ""
    for part in ("infeasible", "memory", "shortfall", "GiB per device", "remedy"):
        assert part in said.out
    document = call(*words, "--json")
    result = codec.loads(PlanResult, document.out)
    assert (document.status, result.plan, result.report.status) == (3, None, Status.INFEASIBLE)
    assert result.report.infeasibility is not None
    assert result.report.infeasibility.shortfall_bytes > 0


def without_plan(problem: Problem, options: object) -> PlanResult:
    report = SearchReport(
        status=Status.LIMIT,
        objective="iteration_time",
        search_model="overlapped",
        objective_s=None,
        bound_s=None,
        gap=None,
        certificates=(),
        optimizer="auto",
        solver="",
        runtime_s=1.0,
        seed=0,
    )
    return PlanResult(plan=None, estimate=None, report=report)


def test_a_limit_without_a_plan_is_status_4(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner.service, "plan", without_plan)
    said = call(*GPT2)
    assert said.status == 4
    assert "before the limit" in said.out


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        (KeyError("x"), 1, "this is our fault: KeyError: 'x'"),
        (RunError("rank 1 said no"), 1, "error: rank 1 said no"),
        (LimitError("too long"), 4, "error: too long"),
        (MemoryError(), 4, "out of memory"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_each_fault_maps_to_its_exit_status(
    fault: BaseException, status: int, text: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(problem: Problem, options: object) -> PlanResult:
        raise fault

    monkeypatch.setattr(planner.service, "plan", fail)
    said = call(*GPT2)
    assert said.status == status
    assert text in said.err
    assert "Traceback" not in said.err
    if isinstance(fault, Exception):
        assert "Traceback" in call("--debug", *GPT2).err


def test_the_file_holds_what_json_prints(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    said = call(*GPT2, "--json", "-o", path)
    assert (said.status, said.err) == (0, "")
    assert json.loads(said.out)["document"] == "plan_result"
    held = plan_file(path)
    assert codec.loads(PlanResult, said.out) == held.result
    assert held.result.plan is not None
    assert held.problem.workload.global_batch_size == 16
    assert held.result.plan.problem_fingerprint == codec.fingerprint(held.problem)


def test_the_tables_hold_the_figures_of_the_document(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    said = call(*GPT2, "--num-stages", "2", "-o", path)
    result = plan_file(path).result
    assert said.status == 0
    assert result.plan is not None
    assert result.estimate is not None
    for stage in result.plan.stages:
        assert stage.layers[0] in said.out
    for stage_estimate in result.estimate.stages:
        assert f"{stage_estimate.memory.total_bytes / 2**30:.2f}" in said.out
    for part in ("simulated", "certificate", "search model 'overlapped'", "no plan is below", "Runners-up"):
        assert part in said.out


def test_the_same_seed_gives_the_same_plan(call: Call) -> None:
    first, second = (codec.loads(PlanResult, call(*GPT2, "--seed", "3", "--json").out) for _ in range(2))
    assert (first.plan, first.estimate) == (second.plan, second.estimate)


def test_a_placement_file_brings_its_cluster_and_workload(call: Call) -> None:
    file = INSTANCES / "device-placement" / "bert24_inference.json"
    said = call("plan", file, "--objective", "throughput", "--cost-model", "blocking", "--json")
    result = codec.loads(PlanResult, said.out)
    assert said.status == 0
    assert result.report.objective == "throughput"
    assert result.report.search_model == "blocking"
    assert result.plan is not None


def test_a_graph_file_is_priced_for_the_devices_of_the_cluster(call: Call) -> None:
    file = INSTANCES / "pipedream" / "vgg16.graph.txt"
    words = ("plan", file, "--cluster", "4xV100-16G", "--global-batch", "64", "--minibatch", "64", "--json")
    result = codec.loads(PlanResult, call(*words).out)
    assert result.plan is not None
    assert result.plan.microbatch_size * result.plan.num_microbatches == 64


def test_a_dash_is_standard_input(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (INSTANCES / "pipedream" / "alexnet.graph.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert call("plan", "-", "--cluster", "2xV100-16G", "--global-batch", "8").status == 0


def test_a_problem_document_and_a_cluster_file_are_sources(call: Call, tmp_path: Path) -> None:
    cluster, plan, problem = tmp_path / "lab.toml", tmp_path / "plan.json", tmp_path / "problem.json"
    cluster.write_text('[[nodes]]\ncount = 2\ndevices = [{ type = "L4", count = 2, free_memory_bytes = "20GiB" }]\n')
    assert call("plan", "gpt2-small", "--cluster", cluster, "--global-batch", "16", "-o", plan).status == 0
    held = plan_file(plan)
    assert set(held.problem.memory_limits.values()) == {20 * 2**30}
    problem.write_text(codec.dumps(held.problem))
    again = codec.loads(
        PlanResult, call("plan", problem, "--tensor", "auto", "--zero", "auto", "--recompute", "auto", "--json").out
    )
    assert (again.plan, again.estimate) == (held.result.plan, held.result.estimate)


def test_a_profile_goes_into_a_plan(call: Call, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    written = call("profile", "gpt2-small", "--device", "L4", "--microbatch-sizes", "1,2", "-o", profile)
    assert (written.status, written.out) == (0, "")
    assert "15 layers" in written.err
    values = json.loads(profile.read_text())
    assert [table["microbatch_size"] for table in values["profiles"][0]["tables"]] == [1, 2]
    planned = call("plan", profile, "--cluster", "2xL4", "--global-batch", "4", "--json")
    assert codec.loads(PlanResult, planned.out).plan is not None


def test_a_profile_goes_to_standard_output(call: Call) -> None:
    said = call("profile", "gpt2-small", "--device", "L4", "--dtype", "float32")
    assert json.loads(said.out)["profiles"][0]["dtype"] == "float32"


def test_the_catalogue_lists_what_requests_may_name(call: Call) -> None:
    values = json.loads(call("catalogue", "--json").out)
    names = {family: {row["name"] for row in rows} for family, rows in values.items()}
    assert {"H100-80G-SXM", "cpu-core"} <= names["devices"]
    assert {"llama-3-70b", "gpt2-small"} <= names["models"]
    assert {"1f1b", "gpipe"} <= names["schedules"]
    assert {"chain_dp"} <= names["optimizers"]
    assert {"chrome_trace", "torch_pipelining"} <= names["exporters"]
    assert {"pipedream", "device-placement", "profile"} <= names["formats"]
    assert names["links"]
    assert names["bounds"]
    tables = call("catalogue", "models")
    assert "llama-3-70b" in tables.out
    assert "H100" not in tables.out
