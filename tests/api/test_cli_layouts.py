"""`import-plan` and `plan --compare-with`: layouts of engines on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import GPT2, Call, call, plan_file

from planner import codec
from planner.exporters import EXPORTERS
from planner.plan import Plan
from planner.problem import Problem
from profiles.layouts import LAYOUTS

__all__ = ["call"]

TRAINED = [name for name in LAYOUTS.names() if name not in ("vllm", "device_map")]
TODAY = (
    "--pipeline-model-parallel-size 2 --tensor-model-parallel-size 1 --micro-batch-size 1 --global-batch-size {batch}"
)


@pytest.fixture
def planned(call: Call, tmp_path: Path) -> Path:
    """A plan of two stages that every engine can run, in a file."""
    path = tmp_path / "plan.json"
    said = call(*GPT2, "--num-stages", "2", "--microbatch", "2", "--schedule", "1f1b", "--zero", "0", "-o", path)
    assert said.status == 0
    return path


@pytest.mark.parametrize("name", TRAINED)
def test_import_plan_undoes_export(name: str, call: Call, planned: Path, tmp_path: Path) -> None:
    layout, problem = tmp_path / f"layout{EXPORTERS[name].file_suffix}", tmp_path / "problem.json"
    assert call("export", planned, "--to", name, "-o", layout).status == 0
    held = plan_file(planned)
    problem.write_text(codec.dumps(held.problem))
    assert held.result.plan is not None
    for source in (planned, problem):
        said = call("import-plan", layout, "--problem", source)
        assert said.status == 0, said.err
        assert codec.loads(Plan, said.out).stages == held.result.plan.stages
    again = tmp_path / "again.json"
    assert call("import-plan", layout, "--problem", problem, "--format", name, "-o", again).status == 0
    assert call("estimate", again, "--problem", problem).status == 0


def test_a_layout_of_another_model_is_refused_by_name(call: Call, planned: Path, tmp_path: Path) -> None:
    layout = tmp_path / "run.sh"
    layout.write_text("--num-layers 30 --pipeline-model-parallel-size 2")
    said = call("import-plan", layout, "--problem", planned)
    assert said.status == 2
    assert "run.sh" in said.err
    assert "30 decoder layers, the model has 12" in said.err


def batch_of(path: Path) -> int:
    problem: Problem = plan_file(path).problem
    return problem.workload.global_batch_size


def test_what_runs_today_is_priced_beside_the_plan(call: Call, planned: Path, tmp_path: Path) -> None:
    layout = tmp_path / "run.sh"
    layout.write_text(TODAY.format(batch=batch_of(planned)))
    said = call(*GPT2, "--compare-with", layout, "--json")
    assert said.status == 0, said.err
    result = json.loads(said.out)
    theirs = result["baseline"]
    assert theirs["name"] == str(layout)
    assert [len(stage["layers"]) for stage in theirs["plan"]["stages"]] == [7, 8]
    assert len(theirs["estimate"]["stages"]) == 2
    assert theirs["ratio"] == theirs["estimate"]["iteration_time_s"] / result["estimate"]["iteration_time_s"]
    assert theirs["ratio"] >= 1 - 1e-9
    shown = call(*GPT2, "--compare-with", layout).out
    assert "This plan (left)" in shown
    assert f"{theirs['ratio']:.3f} times as long" in shown


def test_a_plan_compared_with_itself_takes_as_long(call: Call, planned: Path) -> None:
    said = call(*GPT2, "--num-stages", "2", "--microbatch", "2", "--schedule", "1f1b", "--zero", "0",
                "--compare-with", planned, "--json")  # fmt: skip
    assert json.loads(said.out)["baseline"]["ratio"] == 1.0


def test_another_tensor_degree_than_the_pinned_one_has_a_price(call: Call, planned: Path, tmp_path: Path) -> None:
    layout = tmp_path / "run.sh"
    today = TODAY.format(batch=batch_of(planned)).replace(
        "tensor-model-parallel-size 1", "tensor-model-parallel-size 2"
    )
    layout.write_text(today)
    said = call(*GPT2, "--tensor", "1", "--compare-with", layout, "--json")
    assert said.status == 0, said.err
    result = json.loads(said.out)
    assert {stage["tensor"] for stage in result["baseline"]["plan"]["stages"]} == {2}
    assert {stage["tensor"] for stage in result["plan"]["stages"]} == {1}


def test_the_file_is_read_before_the_search(call: Call, tmp_path: Path) -> None:
    missing = call(*GPT2, "--compare-with", tmp_path / "none.sh")
    assert missing.status == 2
    assert "none.sh" in missing.err


MEGATRON = """
torchrun pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 \\
    --vocab-size 32000 --global-batch-size 32 --micro-batch-size 1 --pipeline-model-parallel-size 4
"""


def test_a_launch_script_is_source_and_baseline(call: Call, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(MEGATRON)
    said = call("plan", script, "--cluster", "4xH100-80G-SXM", "--compare-with", script, "--json")
    assert said.status == 0, said.err
    result = json.loads(said.out)
    assert result["plan"]["microbatch_size"] * result["plan"]["num_microbatches"] == 32
    assert [len(stage["layers"]) for stage in result["baseline"]["plan"]["stages"]] == [3, 2, 2, 3]
    assert result["baseline"]["ratio"] >= 1 - 1e-9
