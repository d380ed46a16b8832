"""A launch script: torchrun on one node, Slurm with one torchrun per node on several.

    bash plan.launch.sh train.py ...        one node
    sbatch plan.launch.sh train.py ...      several nodes

Processes are numbered as the plan's devices are, stage by stage: the order that the meshes of PyTorch, torchtitan,
Megatron-LM and DeepSpeed have. Node k of the script is the k-th node of the job. The script starts processes and
nothing else: what they run by is one of the other exports.
"""

from __future__ import annotations

from planner.exporters._nodes import Nodes, nodes_of
from planner.exporters.base import EXPORTERS, ExportContext

PORT = 29500
"""torchrun's own default."""


@EXPORTERS.register
class Launch:
    """A bash script; refuses devices that do not go through the nodes one by one, equally many on each."""

    name = "launch"
    media_type = "text/x-shellscript"
    file_suffix = ".launch.sh"

    def export(self, context: ExportContext) -> str:
        """The script; ExportError naming the stage whose processes cannot be started so."""
        nodes = nodes_of(context, "torchrun")
        lines = _one_node(nodes) if len(nodes.names) == 1 else _several_nodes(nodes)
        return "\n".join(("#!/bin/bash", *lines, ""))


def _one_node(nodes: Nodes) -> list[str]:
    return [
        "set -euo pipefail",
        *([f"export {_visible(nodes, 0)}"] if nodes.accelerators else []),
        f'exec torchrun --standalone --nproc-per-node={nodes.processes_per_node} "$@"',
    ]


def _several_nodes(nodes: Nodes) -> list[str]:
    count = len(nodes.names)
    chosen = [f"    {number}) export {_visible(nodes, number)} ;;" for number in range(count)]
    return [
        "#SBATCH --job-name=pipeplan",
        f"#SBATCH --nodes={count}",
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={nodes.devices_on_node}"] if nodes.accelerators else []),
        "set -euo pipefail",
        'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        "srun --kill-on-bad-exit=1 bash -c '",
        *(['case "$SLURM_NODEID" in', *chosen, "esac"] if nodes.accelerators else []),
        f'exec torchrun --nnodes={count} --nproc-per-node={nodes.processes_per_node} --node-rank="$SLURM_NODEID" '
        f'--master-addr="$MASTER_ADDR" --master-port={PORT} "$@"',
        '\' torchrun "$@"',
    ]


def _visible(nodes: Nodes, node: int) -> str:
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, nodes.devices[node]))}"
