"""One architecture, and the sizes that many of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LENGTH = 16
IMAGE_SIZE = 32
PATCH_SIZE = 8

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One architecture: its kind, the class that is built, its configuration, and tokens per sample."""

    kind: str
    config: Values
    length: int = LENGTH


def entries(kind: str, models: dict[str, tuple[str, Values]], length: int = LENGTH) -> dict[str, Entry]:
    """Model type -> (class, values)."""
    return {
        name: Entry(kind=kind, config={"model_type": name, "architectures": [made], **values}, length=length)
        for name, (made, values) in models.items()
    }


IDS: Values = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SIZES: Values = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
POSITIONS: Values = {"max_position_embeddings": 64}
TEXT = IDS | SIZES | POSITIONS
GROUPED = TEXT | {"num_key_value_heads": 2}
HEADS_OF_8 = GROUPED | {"head_dim": 8}
GPT: Values = IDS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
