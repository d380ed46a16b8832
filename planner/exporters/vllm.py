"""How vLLM is told to serve by a plan: `VLLM_PP_LAYER_PARTITION` and the degrees.

A bash fragment; the model's name is the user's. The partition is the number of decoder layers of every pipeline rank;
the embedding is with the first one, norm and head with the last one, so that every stage needs a decoder layer. Equal
replicas are whole copies of the model, between which vLLM deals the requests (`--data-parallel-size`).

What cannot be expressed: training, context and expert degrees, graphs that are no chain of blocks.
"""

from __future__ import annotations

from planner.exporters._parts import parts_of
from planner.exporters.base import EXPORTERS, ExportContext
from planner.targets import TARGETS

PARTITION = "VLLM_PP_LAYER_PARTITION"


@EXPORTERS.register
class VLLM:
    """The environment variable and the command; refuses what vLLM cannot express."""

    name = "vllm"
    media_type = "text/x-shellscript"
    file_suffix = ".vllm.sh"

    def export(self, context: ExportContext) -> str:
        """The fragment; ExportError naming the stage that vLLM cannot express."""
        TARGETS[self.name].check(context.plan, context.problem)
        parts = parts_of(context)
        first = context.plan.stages[0]
        counts = ",".join(str(len(part.blocks)) for part in parts)
        return (
            f'export {PARTITION}="{counts}"\n'
            f'vllm serve "$MODEL" --pipeline-parallel-size {len(parts)} --tensor-parallel-size {first.tensor} '
            f"--data-parallel-size {len(first.replicas)}\n"
        )
