"""A `TrainJob` of Kubeflow Trainer: as many nodes and processes per node as the plan has.

A JSON manifest (`kubectl apply -f`), API version `trainer.kubeflow.org/v1alpha1` (Kubeflow Trainer 2). The runtime
`torch-distributed` starts torchrun on every node; image and command are the runtime's, or go into `spec.trainer`. Ranks
are numbered node by node, as for the export `launch`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from planner.exporters._nodes import nodes_of
from planner.exporters.base import EXPORTERS, ExportContext

API_VERSION = "trainer.kubeflow.org/v1alpha1"
RUNTIME = "torch-distributed"
GPU = "nvidia.com/gpu"
MAX_NAME = 50
"""Kubernetes names have at most 63 letters; a job's pods add to it."""


@EXPORTERS.register
class Kubeflow:
    """A manifest; refuses devices that do not go through the nodes one by one, equally many on each."""

    name = "kubeflow"
    media_type = "application/json"
    file_suffix = ".trainjob.json"

    def export(self, context: ExportContext) -> str:
        """The manifest as JSON text; ExportError naming the stage whose processes cannot be started so."""
        return json.dumps(train_job(context), indent=2) + "\n"


def train_job(context: ExportContext) -> dict[str, Any]:
    """The manifest as JSON values."""
    nodes = nodes_of(context, "Kubeflow Trainer")
    trainer: dict[str, Any] = {"numNodes": len(nodes.names), "numProcPerNode": nodes.processes_per_node}
    if nodes.accelerators:
        trainer["resourcesPerNode"] = {"limits": {GPU: nodes.processes_per_node}}
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": _job_name(context.problem.graph.name)},
        "spec": {"runtimeRef": {"name": RUNTIME}, "trainer": trainer},
    }


def _job_name(model: str) -> str:
    """Small letters, digits and hyphens."""
    words = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"pipeplan-{words}"[:MAX_NAME].strip("-")
