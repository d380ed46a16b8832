"""Arguments of Megatron-LM as a model: a dense GPT by the shape that a launch script gives.

    --num-layers --hidden-size --num-attention-heads --seq-length      needed
    --ffn-hidden-size        else 4 h, with --swiglu two thirds of it in steps of 64
    --kv-channels            else h / heads
    --group-query-attention --num-query-groups, --swiglu, --untie-embeddings-and-output-weights
    --vocab-size             padded to a multiple of --make-vocab-size-divisible-by (128) x tensor degree
    --bf16, --fp16           else single precision
    --attention-backend      unfused or local: the scores are kept; else attention is fused
    --global-batch-size      the workload, where it is given

Degrees, batch and layout are read by `profiles.layouts.megatron`: here they are for the planner to find. Mixtures of
experts, latent attention and multi-token prediction have other layers: plan these from a transformers configuration.
What the shape costs: `profiles.transformer`.
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import InputError
from planner.workload import Training
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.layouts._arguments import Arguments
from profiles.model import ModelRecord
from profiles.transformer import TransformerShape, transformer_record

OTHER_LAYERS = ("num-experts", "multi-latent-attention", "mtp-num-layers")
UNFUSED = ("unfused", "local")
VOCABULARY_STEP = 128
GATED_STEP = 64
HALF = ("bf16", "fp16")


@IMPORTERS.register
class Megatron:
    """Reads arguments wherever they stand in a script."""

    name = "megatron"

    def sniff(self, head: bytes) -> bool:
        """The layers and the width."""
        dashed = head.replace(b"_", b"-")
        return b"--num-layers" in dashed and b"--hidden-size" in dashed

    def read(self, text: str, options: ImportOptions) -> ModelRecord:
        """The record of the shape, with its workload where the batch is given."""
        given = Arguments(text)
        other = next((name for name in OTHER_LAYERS if name in given and given.text(name) != "0"), None)
        if other is not None:
            raise InputError(
                f"--{other} makes layers that are not read from arguments: plan from the model's config.json, and give "
                "this file to --compare-with"
            )
        record = transformer_record("megatron", shape_of(given))
        if not any(name in given for name in HALF):
            from profiles.records import in_dtype

            record = in_dtype(record, "float32")
        return replace(record, workload=_workload(given, record))


def shape_of(given: Arguments) -> TransformerShape:
    """The shape that the arguments give; InputError names the one that is missing."""
    hidden, heads = given.needed("hidden-size"), given.needed("num-attention-heads")
    gated = "swiglu" in given
    groups = (given.count("num-query-groups") or 1) if "group-query-attention" in given else None
    return TransformerShape(
        hidden=hidden,
        feedforward=given.count("ffn-hidden-size") or _feedforward(hidden, gated),
        sequence_length=given.needed("seq-length"),
        heads=heads,
        head_size=given.count("kv-channels") or max(1, hidden // heads),
        num_blocks=given.needed("num-layers"),
        vocabulary=_vocabulary(given),
        key_value_heads=groups,
        gated=gated,
        tied="untie-embeddings-and-output-weights" not in given,
        fused_attention=given.text("attention-backend") not in UNFUSED,
    )


def _feedforward(hidden: int, gated: bool) -> int:
    return max(1, hidden * 8 // 3 // GATED_STEP) * GATED_STEP if gated else 4 * hidden


def _vocabulary(given: Arguments) -> int | None:
    """Padded so that every tensor-parallel rank has as many rows."""
    size = given.count("vocab-size")
    if not size:
        return None
    tensor = given.count("tensor-model-parallel-size") or 1
    step = (given.count("make-vocab-size-divisible-by") or VOCABULARY_STEP) * tensor
    return -(-size // step) * step


def _workload(given: Arguments, record: ModelRecord) -> Training | None:
    """Mixed precision keeps gradients, master weights and both moments in single precision."""
    batch = given.count("global-batch-size")
    if not batch:
        return None
    half = record.dtype != "float32"
    return Training(
        global_batch_size=batch,
        sequence_length=record.sequence_length,
        weight_bytes_per_parameter=2.0 if half else 4.0,
        gradient_bytes_per_parameter=4.0,
        optimizer_bytes_per_parameter=12.0 if half else 8.0,
    )
