"""A torchtitan configuration: which modules are in which model part, schedule, degrees, batch, checkpointing.

TOML with the sections and fields of torchtitan's configuration classes. Until 0.2 torchtitan reads such a file itself
(`--job.config_file`); since 0.3 its configurations are Python, and a section is the arguments of its class:

    values = tomllib.load(file)
    config.parallelism = ParallelismConfig(**values["parallelism"])

Module names are those of torchtitan's decoders. Rank r of the pipeline runs the parts r, r + P ..., and under the
V-shaped schedules r and 2P - 1 - r, as our plans have it; the mesh is (pp, dp_replicate, dp_shard, cp, tp). FSDP is
ZeRO 1 here: torch's pipelining keeps the weights that FSDP gathered and whole gradients until the last backward pass
(`PipelineStage.backward_maybe_with_nosync`, `perform_reduce_grad`), so that only the optimizer state is divided.

What cannot be expressed: selective recomputation (torchtitan's keeps chosen operators, not all but the attention core),
levels that differ between stages, ZeRO 2 and 3, graphs that are no chain of blocks.
"""

from __future__ import annotations

import json
from typing import Any

from planner.exporters._parts import Part, parts_of, pipeline_size
from planner.exporters.base import EXPORTERS, ExportContext
from planner.exporters.torch_pipelining import TORCH_SCHEDULES
from planner.targets import TARGETS
from planner.workload import Recomputation

FIRST, BLOCK, LAST = "tok_embeddings", "layers.", ("norm", "lm_head")
"""Names of torchtitan's decoders (`lm_head` was `output` until 0.2)."""


@EXPORTERS.register
class TorchTitan:
    """A TOML configuration; refuses what torchtitan cannot express."""

    name = "torchtitan"
    media_type = "application/toml"
    file_suffix = ".torchtitan.toml"

    def export(self, context: ExportContext) -> str:
        """The configuration; ExportError naming the stage that torchtitan cannot express."""
        TARGETS[self.name].check(context.plan, context.problem)
        sections = (_section(name, values) for name, values in torchtitan_values(context).items())
        return "\n".join(sections)


def torchtitan_values(context: ExportContext) -> dict[str, dict[str, Any]]:
    """Section -> field -> value."""
    plan, training = context.plan, context.problem.training
    replicas = len(plan.stages[0].replicas)
    per_rank = plan.microbatch_size // replicas
    batch = {"local_batch_size": per_rank * plan.num_microbatches, "global_batch_size": per_rank * replicas}
    batch["global_batch_size"] *= plan.num_microbatches
    length = training.sequence_length if training is not None else None
    full = plan.stages[0].recomputation is Recomputation.FULL
    return {
        "parallelism": _parallelism(context, replicas, per_rank),
        "training": batch | ({} if length is None else {"seq_len": length}),
        "activation_checkpoint": {"mode": "full" if full else "none"},
    }


def _parallelism(context: ExportContext, replicas: int, microbatch_size: int) -> dict[str, Any]:
    plan, first = context.plan, context.plan.stages[0]
    sharded = first.zero == 1
    values: dict[str, Any] = {
        "pipeline_parallel_degree": pipeline_size(context),
        "pipeline_parallel_schedule": TORCH_SCHEDULES[plan.schedule],
        "pipeline_parallel_microbatch_size": microbatch_size,
        "module_fqns_per_model_part": [_modules(part) for part in parts_of(context)],
        "data_parallel_replicate_degree": 1 if sharded else replicas,
        "data_parallel_shard_degree": replicas if sharded else 1,
        "tensor_parallel_degree": first.tensor,
        "context_parallel_degree": first.context,
    }
    training = context.problem.training
    if first.tensor > 1 and training is not None:
        values["enable_sequence_parallel"] = training.sequence_parallel
    return values | ({"fsdp_reshard_after_forward": "never"} if sharded else {})


def _modules(part: Part) -> list[str]:
    blocks = [f"{BLOCK}{number}" for number in part.blocks]
    return [*([FIRST] if part.starts else []), *blocks, *(LAST if part.ends else ())]


def _section(name: str, values: dict[str, Any]) -> str:
    """TOML: JSON's texts, numbers and lists are TOML's too."""
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
