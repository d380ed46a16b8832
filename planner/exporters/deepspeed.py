"""What DeepSpeed needs to run a plan: the parts of a `PipelineModule`, its topology and the engine's configuration.

One JSON document. `pipeline.parts` are the bounds of the stages in the list of layers that `PipelineModule` is given,
which must be the document's `pipeline.layers` in this order (the loss is its `loss_fn`). DeepSpeed partitions by
weights only; given bounds go in through the method that it calls for it (0.19):

    class Planned(PipelineModule):
        def _partition_layers(self, method):
            stage = self._topo.get_coord(self.global_rank).pipe
            self.parts = document["pipeline"]["parts"]
            self._set_bounds(self.parts[stage], self.parts[stage + 1])

    Planned(layers, topology=PipeModelDataParallelTopology(**document["topology"]),
            activation_checkpoint_interval=document["pipeline"]["activation_checkpoint_interval"], loss_fn=...)

What cannot be expressed: schedules other than 1F1B, several stages on a rank, ZeRO 2 and 3 (its pipeline engine refuses
them), selective recomputation, levels that differ between stages, graphs that are no chain.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from planner.exporters.base import EXPORTERS, ExportContext
from planner.result import SCHEMA_VERSION
from planner.targets import LOSS, TARGETS
from planner.workload import Recomputation


@EXPORTERS.register
class DeepSpeed:
    """Parts, topology and configuration; refuses what DeepSpeed's pipelines cannot express."""

    name = "deepspeed"
    media_type = "application/json"
    file_suffix = ".deepspeed.json"

    def export(self, context: ExportContext) -> str:
        """The document as JSON text; ExportError naming the stage that DeepSpeed cannot express."""
        TARGETS[self.name].check(context.plan, context.problem)
        return json.dumps(deepspeed_document(context), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def deepspeed_document(context: ExportContext) -> dict[str, Any]:
    """The document as JSON values (see the module's head)."""
    plan, first = context.plan, context.plan.stages[0]
    layers = [layer.id for layer in context.problem.index.layers if layer.op != LOSS]
    bounds = accumulate((len(stage.layers) for stage in plan.stages), initial=0)
    replicas = len(first.replicas)
    return {
        "document": DeepSpeed.name,
        "schema_version": SCHEMA_VERSION,
        "pipeline": {
            "layers": layers,
            "parts": [min(bound, len(layers)) for bound in bounds],
            "activation_checkpoint_interval": int(first.recomputation is Recomputation.FULL),
        },
        "topology": {"num_pp": len(plan.stages), "num_mp": first.tensor, "num_dp": replicas},
        "config": {
            "train_batch_size": plan.microbatch_size * plan.num_microbatches,
            "train_micro_batch_size_per_gpu": plan.microbatch_size // replicas,
            "gradient_accumulation_steps": plan.num_microbatches,
            "zero_optimization": {"stage": first.zero},
        },
    }
