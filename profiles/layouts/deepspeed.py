"""Layouts in the documents of the exporter `deepspeed`: bounds of the parts, topology, batch."""

from __future__ import annotations

from itertools import pairwise

from planner.errors import InputError
from planner.exporters.deepspeed import DeepSpeed as Exporter
from planner.plan import Plan
from planner.problem import Problem
from planner.targets import LOSS
from planner.workload import Recomputation
from profiles.layouts._documents import Document, is_document
from profiles.layouts.base import LAYOUTS, Layout, plan_of


@LAYOUTS.register
class DeepSpeed:
    """Reads parts by position: the layers of the problem without its loss, in execution order."""

    name = Exporter.name

    def sniff(self, text: str) -> bool:
        """A JSON object that says so."""
        return is_document(text, self.name)

    def read(self, text: str, problem: Problem) -> Plan:
        """The plan; the loss is with the last part."""
        document = Document(text)
        pipeline, topology, config = (document.inside(name) for name in ("pipeline", "topology", "config"))
        parts = pipeline.counts("parts")
        layers = [layer.id for layer in problem.index.layers if layer.op != LOSS]
        if parts[:1] != [0] or parts[-1:] != [len(layers)] or any(a >= b for a, b in pairwise(parts)):
            raise InputError(
                f"pipeline.parts is {str(parts)[:64]}: it must rise from 0 to {len(layers)}, the layers of the model",
                pointer="/pipeline/parts",
            )
        loss = tuple(layer.id for layer in problem.index.layers if layer.op == LOSS)
        stages = [tuple(layers[a:b]) for a, b in pairwise(parts)]
        interval = pipeline.count("activation_checkpoint_interval")
        layout = Layout(
            stages=(*stages[:-1], (*stages[-1], *loss)),
            pipeline_size=len(stages),
            replicas=topology.count("num_dp"),
            tensor=topology.count("num_mp"),
            recomputation=Recomputation.FULL if interval else Recomputation.NONE,
            zero=config.inside("zero_optimization").count("stage"),
            microbatch_size=config.count("train_micro_batch_size_per_gpu"),
            global_batch_size=config.count("train_batch_size"),
        )
        return plan_of(layout, problem)
