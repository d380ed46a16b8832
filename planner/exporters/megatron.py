"""Arguments of Megatron-LM that make it run the plan: layout, degrees, batch, recomputation.

The text is a bash fragment:

    source plan.megatron.sh
    torchrun ... pretrain_gpt.py "${MEGATRON_ARGUMENTS[@]}" ...

Ranks are in Megatron's default order (tensor, context, data, pipeline: the first one fastest), which is the order of
the plan's devices stage by stage. Arguments as of Megatron core 0.16: a layout says how many virtual stages there are,
so that no other argument about them may be given. What older arguments can say too stands in a comment.

What cannot be expressed: recomputation or ZeRO that differs between stages (they are arguments of all), schedules other
than 1F1B and interleaved 1F1B, ZeRO 2 and 3 with a pipeline, graphs that are no chain of blocks.
"""

from __future__ import annotations

from planner.exporters._megatron_layout import write_layout
from planner.exporters._parts import Part, num_processes, parts_of, pipeline_size
from planner.exporters.base import EXPORTERS, ExportContext
from planner.targets import TARGETS
from planner.workload import Recomputation

ARGUMENTS = "MEGATRON_ARGUMENTS"
WORLD_SIZE = "WORLD_SIZE"
DISTRIBUTED_OPTIMIZER = "--use-distributed-optimizer"
MULTI_TOKEN = "mtp"
"""Layers after the blocks whose id holds this word are multi-token predictions."""
RECOMPUTE = {
    Recomputation.NONE: (),
    Recomputation.SELECTIVE: ("--recompute-granularity selective",),
    Recomputation.FULL: (
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ),
}


@EXPORTERS.register
class Megatron:
    """A bash array of arguments; refuses what Megatron-LM cannot express."""

    name = "megatron"
    media_type = "text/x-shellscript"
    file_suffix = ".megatron.sh"

    def export(self, context: ExportContext) -> str:
        """The fragment; ExportError naming the stage that Megatron-LM cannot express."""
        TARGETS[self.name].check(context.plan, context.problem)
        lines = "".join(f"    {argument}\n" for argument in arguments_of(context))
        head = f"# {_ranks(context)}\n{WORLD_SIZE}={num_processes(context)}\n"
        return f"{head}{_comment(parts_of(context), context)}{ARGUMENTS}=(\n{lines})\n"


def arguments_of(context: ExportContext) -> list[str]:
    """The arguments, one text each, values quoted for a shell where they need it."""
    plan, first, training = context.plan, context.plan.stages[0], context.problem.training
    replicas = len(first.replicas)
    found = [
        f"--tensor-model-parallel-size {first.tensor}",
        f"--pipeline-model-parallel-size {pipeline_size(context)}",
        f"--context-parallel-size {first.context}",
        f"--pipeline-model-parallel-layout '{write_layout(chunks_of(context))}'",
        f"--micro-batch-size {plan.microbatch_size // replicas}",
        f"--global-batch-size {plan.microbatch_size * plan.num_microbatches}",
        *RECOMPUTE[first.recomputation],
    ]
    if first.expert > 1:
        found.append(f"--expert-model-parallel-size {first.expert}")
    if first.tensor > 1 and training is not None and training.sequence_parallel:
        found.append("--sequence-parallel")
    if first.zero:
        found.append(DISTRIBUTED_OPTIMIZER)
    return found


def chunks_of(context: ExportContext) -> list[str]:
    """The letters of every stage (see `_megatron_layout`)."""
    predictions = [sum(MULTI_TOKEN in name for name in stage.layers) for stage in context.plan.stages]
    return [
        "E" * part.starts + "t" * len(part.blocks) + "m" * more + "L" * part.ends
        for part, more in zip(parts_of(context), predictions, strict=True)
    ]


def _ranks(context: ExportContext) -> str:
    replicas = len(context.plan.stages[0].replicas)
    return f"{num_processes(context)} processes: {pipeline_size(context)} pipeline ranks, data parallel {replicas}"


def _comment(parts: list[Part], context: ExportContext) -> str:
    """The same in the arguments for the first and last rank, where these can say it."""
    counts = [len(part.blocks) for part in parts]
    inner = set(counts[1:-1])
    if len(counts) != pipeline_size(context) or len(counts) < 2 or len(inner) > 1 or 0 in counts:
        return ""
    if len(set(counts)) == 1:
        return "# the default split: the layout can be left out\n"
    sides = f"--decoder-first-pipeline-num-layers {counts[0]} --decoder-last-pipeline-num-layers {counts[-1]}"
    return f"# instead of the layout: {sides}\n"
