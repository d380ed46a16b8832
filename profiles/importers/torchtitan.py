"""Configurations of torchtitan (TOML) as a model: `[model]` names one of its flavors, `[training]` length and batch.

Shapes are those of its registries (`torchtitan/models/llama3`, `torchtitan/models/qwen3`): grouped queries,
gated feed-forward, fused attention. Since 0.3 torchtitan names the model on its command line instead: add the section

    [model]
    name = "llama3"
    flavor = "8B"

Degrees and layout are read by `profiles.layouts.torchtitan`. Parameters, gradients and moments are in single precision,
the passes in bfloat16, as torchtitan's mixed precision has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.workload import Training
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.layouts.torchtitan import Section, sections
from profiles.model import ModelRecord
from profiles.transformer import TransformerShape, transformer_record

DEFAULT_LENGTH = 2048
LLAMA_WORDS, QWEN_WORDS = 128_256, 151_936


@dataclass(frozen=True, slots=True)
class Flavor:
    """Width, blocks, heads, heads of keys and values, size of a head, width of the feed-forward part, vocabulary."""

    hidden: int
    blocks: int
    heads: int
    key_value_heads: int
    head_size: int
    feedforward: int
    vocabulary: int
    tied: bool = False


FLAVORS = {
    ("llama3", "1B"): Flavor(2048, 16, 32, 8, 64, 8192, LLAMA_WORDS, True),
    ("llama3", "3B"): Flavor(3072, 28, 24, 8, 128, 8192, LLAMA_WORDS, True),
    ("llama3", "8B"): Flavor(4096, 32, 32, 8, 128, 14336, LLAMA_WORDS),
    ("llama3", "70B"): Flavor(8192, 80, 64, 8, 128, 28672, LLAMA_WORDS),
    ("llama3", "405B"): Flavor(16384, 126, 128, 8, 128, 53248, LLAMA_WORDS),
    ("qwen3", "0.6B"): Flavor(1024, 28, 16, 8, 128, 3072, QWEN_WORDS, True),
    ("qwen3", "1.7B"): Flavor(2048, 28, 16, 8, 128, 6144, QWEN_WORDS, True),
    ("qwen3", "4B"): Flavor(2560, 36, 32, 8, 128, 9728, QWEN_WORDS, True),
    ("qwen3", "8B"): Flavor(4096, 36, 32, 8, 128, 12288, QWEN_WORDS),
    ("qwen3", "14B"): Flavor(5120, 40, 40, 8, 128, 17408, QWEN_WORDS),
    ("qwen3", "32B"): Flavor(5120, 64, 64, 8, 128, 25600, QWEN_WORDS),
}
"""(name, flavor) of the dense models, as of torchtitan 0.3.0."""
_SECTION = re.compile(rb"^\s*\[model\]", re.MULTILINE)


@IMPORTERS.register
class TorchTitan:
    """Reads the sections model and training."""

    name = "torchtitan"

    def sniff(self, head: bytes) -> bool:
        """A section `model` with a flavor."""
        return _SECTION.search(head) is not None and b"flavor" in head

    def read(self, text: str, options: ImportOptions) -> ModelRecord:
        """The record of the flavor, with its workload where the global batch is given."""
        values = sections(text)
        training = values.section("training")
        flavor = _flavor(values.section("model"))
        shape = TransformerShape(
            hidden=flavor.hidden,
            feedforward=flavor.feedforward,
            sequence_length=training.count("seq_len", options.sequence_length or DEFAULT_LENGTH),
            heads=flavor.heads,
            head_size=flavor.head_size,
            num_blocks=flavor.blocks,
            vocabulary=flavor.vocabulary,
            key_value_heads=flavor.key_value_heads,
            gated=True,
            tied=flavor.tied,
            fused_attention=True,
        )
        record = transformer_record("torchtitan", shape)
        batch = training.positive("global_batch_size")
        work = None if batch is None else Training(global_batch_size=batch, sequence_length=shape.sequence_length)
        return replace(record, workload=work)


def _flavor(model: Section) -> Flavor:
    name, flavor = model.text("name", ""), model.text("flavor", "")
    if (name, flavor) not in FLAVORS:
        known = ", ".join(f"{a} {b}" for a, b in FLAVORS)
        raise InputError(f"the model {name[:40]!r} {flavor[:40]!r} is not known: use one of {known}", pointer="/model")
    return FLAVORS[name, flavor]
