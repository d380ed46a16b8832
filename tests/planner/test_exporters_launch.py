"""Launch scripts as a shell runs them, beside stand-ins for torchrun and Slurm; TrainJobs as Kubeflow reads them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import ExportError
from planner.exporters import EXPORTERS, ExportContext
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.workload import Training
from profiles.clusters import parse_cluster
from profiles.sources import catalogue_problem

LAYERS = 15
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="runs shell scripts")


def problem_on(cluster: str) -> Problem:
    return catalogue_problem("gpt2-small", parse_cluster(cluster), Training(global_batch_size=16))


def plan_on(problem: Problem, devices: list[str]) -> Plan:
    """One stage per device."""
    ids = [layer.id for layer in problem.index.layers]
    bounds = [round(number * LAYERS / len(devices)) for number in range(len(devices) + 1)]
    stages = [
        Stage(layers=tuple(ids[bounds[n] : bounds[n + 1]]), replicas=((device,),)) for n, device in enumerate(devices)
    ]
    return Plan(stages=tuple(stages), schedule="1f1b", microbatch_size=1, num_microbatches=16)


def exported(name: str, cluster: str, devices: list[str]) -> str:
    problem = problem_on(cluster)
    return EXPORTERS[name].export(ExportContext(problem=problem, plan=plan_on(problem, devices)))


def run(script: str, folder: Path, **environment: str) -> list[str]:
    """Run a launch script for `train.py --x`; what torchrun was called with, line by line, visible devices first."""
    stand_ins = {
        "torchrun": 'printf "%s\\n" "${CUDA_VISIBLE_DEVICES-}" "$@"',
        "srun": 'shift; exec "$@"',
        "scontrol": "printf 'first\\nsecond\\n'",
    }
    for name, body in stand_ins.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "launch.sh").write_text(script)
    done = subprocess.run(
        ["bash", str(folder / "launch.sh"), "train.py", "--x"],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@needs_bash
def test_one_node_runs_torchrun_on_the_plans_devices(tmp_path: Path) -> None:
    said = run(exported("launch", "4xL4", ["gpu2", "gpu0"]), tmp_path)
    assert said == ["2,0", "--standalone", "--nproc-per-node=2", "train.py", "--x"]


@needs_bash
@pytest.mark.parametrize("node", [0, 1])
def test_several_nodes_run_one_torchrun_each(node: int, tmp_path: Path) -> None:
    devices = ["node1/gpu0", "node1/gpu1", "node0/gpu3", "node0/gpu1"]
    script = exported("launch", "2x4xL4", devices)
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gpus-per-node=4\n" in script
    said = run(script, tmp_path, SLURM_NODEID=str(node), SLURM_JOB_NODELIST="x[0-1]")
    assert said[0] == ["0,1", "3,1"][node]
    assert said[1:] == [
        "--nnodes=2",
        "--nproc-per-node=2",
        f"--node-rank={node}",
        "--master-addr=first",
        "--master-port=29500",
        "train.py",
        "--x",
    ]


@needs_bash
def test_torchrun_itself_takes_the_arguments(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    script = exported("launch", "2x4xL4", [f"node{n}/gpu{g}" for n in range(2) for g in range(4)])
    said = run(script, tmp_path, SLURM_NODEID="1", SLURM_JOB_NODELIST="x[0-1]")
    args = get_args_parser().parse_args(said[1:])
    assert (args.nnodes, args.nproc_per_node, args.node_rank) == ("2", "4", 1)
    assert (args.training_script, args.training_script_args) == ("train.py", ["--x"])


@needs_bash
def test_cores_need_no_visible_devices(tmp_path: Path) -> None:
    problem = problem_on("2xL4")
    kinds = tuple(replace(kind, kind="cpu") for kind in problem.cluster.device_types)
    cores = replace(problem, cluster=replace(problem.cluster, device_types=kinds))
    script = EXPORTERS["launch"].export(ExportContext(problem=cores, plan=plan_on(cores, ["gpu0", "gpu1"])))
    assert run(script, tmp_path) == ["", "--standalone", "--nproc-per-node=2", "train.py", "--x"]


@pytest.mark.parametrize("name", ["launch", "kubeflow"])
@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (["node0/gpu0", "node1/gpu0", "node0/gpu1"], "stage 2 is on 'node0/gpu1', after ranks on 'node1'"),
        (["node0/gpu0", "node0/gpu1", "node1/gpu0"], "stage 2 is on 'node1', of which 1 devices are used, and 2"),
    ],
)
def test_ranks_that_jump_between_nodes_are_refused(name: str, devices: list[str], words: str) -> None:
    with pytest.raises(ExportError, match=words):
        exported(name, "2x4xL4", devices)


def test_a_train_job_has_the_plans_nodes_and_processes() -> None:
    job = json.loads(exported("kubeflow", "2x4xL4", [f"node{n}/gpu{g}" for n in range(2) for g in range(3)]))
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["metadata"]["name"] == "pipeplan-gpt2"
    assert job["spec"] == {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {"numNodes": 2, "numProcPerNode": 3, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 3}}},
    }


def test_kubeflows_own_model_reads_the_train_job() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    values = json.loads(exported("kubeflow", "2x4xL4", [f"node{n}/gpu{g}" for n in range(2) for g in range(4)]))
    job = models.TrainerV1alpha1TrainJob.from_dict(values)
    assert job.spec.trainer.num_nodes == 2
    assert job.spec.trainer.num_proc_per_node == 4
    assert job.spec.trainer.resources_per_node.limits["nvidia.com/gpu"].to_dict() == 4
    assert job.to_dict() == values
