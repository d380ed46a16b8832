"""The main job, end to end, on this machine: `python -m api.demo` (what `scripts/demo` runs).

Profiles a GPT-2-shaped model on this machine, starts the HTTP service, asks it for a plan as a training job would,
trains some steps by that plan on two processes, and compares what was predicted with what was measured and what was
computed with the unpartitioned model. Leaves nothing behind: no process, no file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch starts

from api.cli import main as pipeplan
from api.cli import raise_on_termination
from api.demo_service import child_processes, running_service
from api.terminal.console import output
from api.terminal.progress import progress_bar
from api.terminal.result_view import show_result
from api.terminal.run_view import is_equal, show_run
from api.terminal.units import seconds
from planner import codec
from planner.errors import PlannerError, RunError
from planner.options import SearchOptions
from planner.result import PlanResult
from planner.workload import Training
from profiles.model import ProfiledModel

if TYPE_CHECKING:
    from api.client import Client
    from planner.runtime.report import RunReport

CLUSTER = "local:2"
GLOBAL_BATCH_SIZE = 16
MICROBATCH_SIZES = "1,2,4"
NUM_STEPS = 6
SEQUENCE_LENGTH = 128
MODEL = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 6,
    "n_embd": 256,
    "n_head": 8,
    "n_positions": SEQUENCE_LENGTH,
    "vocab_size": 8192,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
"""GPT-2 with fewer and narrower layers: stages of it take some 10 ms on one core. Without dropout, so that a run can be
compared with the unpartitioned model."""
NUM_STAGES = 2
RUNTIME = "runtime"
"""Asked for, to show a pipeline; the demo also says what the planner would choose by itself."""


def main() -> int:
    """Run the demo; 0 when everything was as it should be."""
    began, before = time.monotonic(), child_processes()
    try:
        with raise_on_termination(), _folder() as folder:
            report = _main_job(folder)
        _check_nothing_is_left(folder, before)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except PlannerError as fault:
        return _fail(f"error: {fault}", fault.exit_status)
    if not is_equal(report):
        return _fail("FAIL: the run differs from the unpartitioned model", 1)
    _announce(f"PASS in {time.monotonic() - began:.0f} s; the service is stopped, no process and no file is left")
    return 0


def _main_job(folder: Path) -> RunReport:
    model = _profile(folder)
    _step(2, "start the HTTP service")
    with running_service(folder) as client:
        result = _plan(client, model)
        report = _train(model, result)
        _step(6, "stop the service")
    return report


def _profile(folder: Path) -> ProfiledModel:
    _step(1, "profile a GPT-2-shaped model on one core of this machine (transformers config.json, random weights)")
    configuration, profile = folder / "config.json", folder / "profile.json"
    configuration.write_text(json.dumps(MODEL), encoding="utf-8")
    words = ["profile", str(configuration), "--sequence-length", str(SEQUENCE_LENGTH)]
    words += ["--microbatch-sizes", MICROBATCH_SIZES, "-o", str(profile)]
    _announce(f"$ pipeplan {' '.join(words)}")
    if status := pipeplan(words):
        raise RunError(f"pipeplan profile ended with status {status}")
    return codec.loads(ProfiledModel, profile.read_bytes())


def _plan(client: Client, model: ProfiledModel) -> PlanResult:
    _step(3, f"ask the service for a plan on {CLUSTER}, as a training job does when it starts")
    free = client.plan(_request(model))
    if free.plan is not None and free.estimate is not None:
        count, time_s = len(free.plan.stages), free.estimate.iteration_time_s
        _announce(f"left alone, the planner takes {count} stage(s) and {seconds(time_s)} per iteration;")
    _announce(f"to show a pipeline, {NUM_STAGES} stages are asked for")
    return client.plan(_request(model), SearchOptions(num_stages=NUM_STAGES, target=RUNTIME))


def _request(model: ProfiledModel) -> dict[str, Any]:
    """What a training job sends: model with costs, cluster, workload. The recipe of the model stays here."""
    bare = replace(model, source=None)
    workload = Training(global_batch_size=GLOBAL_BATCH_SIZE)
    return {"model": codec.encode(bare), "cluster": CLUSTER, "workload": codec.encode(workload)}


def _train(model: ProfiledModel, result: PlanResult) -> RunReport:
    from planner.runtime import run
    from planner.service import estimate
    from profiles.clusters import parse_short_form
    from profiles.recipes import loader_of
    from profiles.sources import build_problem

    plan, source = result.plan, model.source
    if plan is None or source is None:
        raise RunError(f"the service found no plan: its status is {result.report.status}")
    problem = build_problem(model, parse_short_form(CLUSTER), Training(global_batch_size=GLOBAL_BATCH_SIZE))
    show_result(result, problem, output())
    _step(4, f"train {NUM_STEPS} steps by this plan, one process per device (torch.distributed.pipelining, gloo)")
    with progress_bar("training") as advance:
        report = run(
            plan,
            loader_of(source),
            num_steps=NUM_STEPS,
            check=True,
            on_progress=lambda done, total, loss: advance(done, total, f"loss {loss:.4f}"),
        )
    _step(5, "compare: predicted and measured, pipelined and unpartitioned")
    show_run(plan, estimate(problem, plan), report, output())
    return report


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pipeplan-demo-") as name:
        yield Path(name)


def _check_nothing_is_left(folder: Path, before: set[int]) -> None:
    """RunError for a folder or a child process that is still there."""
    if folder.exists():
        raise RunError(f"the temporary folder {folder} is still there")
    if left := child_processes() - before:
        raise RunError(f"child processes are still there: {sorted(left)}")


def _step(number: int, what: str) -> None:
    _announce(f"\n[{number}/6] {what}")


def _announce(text: str) -> None:
    console = output()
    console.print(text, style="bold" if text.startswith("\n") else "")
    console.file.flush()


def _fail(text: str, status: int) -> int:
    sys.stderr.write(f"{text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
