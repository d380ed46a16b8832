"""Model files of calculon (calculon-ai/calculon, `models/*.json`): a transformer's shape, six numbers.

`hidden`, `feedforward`, `seq_size`, `attn_heads`, `attn_size`, `num_blocks`; we also read `vocab_size` where it is
there, without it the model is its blocks alone. What the numbers cost: `profiles.transformer`.
"""

from __future__ import annotations

import re
from typing import Any

from planner import codec
from planner.errors import InputError
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.model import ModelRecord
from profiles.transformer import TransformerShape, transformer_record

FIELDS = {
    "hidden": "hidden",
    "feedforward": "feedforward",
    "seq_size": "sequence_length",
    "attn_heads": "heads",
    "attn_size": "head_size",
    "num_blocks": "num_blocks",
}
"""Their key -> our field."""
VOCABULARY = "vocab_size"
_MARKS = (rb'"attn_heads"\s*:', rb'"num_blocks"\s*:', rb'"seq_size"\s*:')


@IMPORTERS.register
class Calculon:
    """Reads a shape; `pipeplan plan gpt3-175B.json --cluster ...` prices it for the cluster's devices."""

    name = "calculon"

    def sniff(self, head: bytes) -> bool:
        """A JSON object with their keys."""
        return head.lstrip().startswith(b"{") and all(re.search(mark, head) for mark in _MARKS)

    def read(self, text: str, options: ImportOptions) -> ModelRecord:
        """The record of the shape."""
        values = codec.parse(text)
        if not isinstance(values, dict):
            raise InputError(f"a calculon model is a JSON object with the numbers {', '.join(FIELDS)}")
        unknown = sorted(set(values) - {*FIELDS, VOCABULARY})
        if unknown:
            raise InputError(
                f"{unknown[0]!r} is no number of a calculon model: leave it out (known: {', '.join(FIELDS)})",
                pointer=f"/{unknown[0]}",
            )
        numbers: dict[str, Any] = {ours: _count(values, theirs) for theirs, ours in FIELDS.items()}
        vocabulary = _count(values, VOCABULARY) if VOCABULARY in values else None
        return transformer_record("transformer", TransformerShape(**numbers, vocabulary=vocabulary))


def _count(values: dict[str, Any], key: str) -> int:
    """A whole number of at least 1."""
    if key not in values:
        raise InputError(f"the calculon model has no {key!r}: give all of {', '.join(FIELDS)}", pointer=f"/{key}")
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key} is {str(value)[:64]!r}: it must be a whole number of at least 1", pointer=f"/{key}")
    return value
