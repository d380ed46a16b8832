"""Tiny transformers configurations, one per family, for the tests of tracing and measuring."""

from __future__ import annotations

from typing import Any

SEQUENCE_LENGTH = 16
BATCH_SIZE = 2

_BLOCKS: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_VOCABULARY = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_DECODER = _BLOCKS | _VOCABULARY | {"num_key_value_heads": 2, "max_position_embeddings": 32}

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": _VOCABULARY | {"model_type": "gpt2", "n_layer": 3, "n_embd": 32, "n_head": 2, "n_positions": 32},
    "llama": _DECODER | {"model_type": "llama"},
    "mixtral": _DECODER | {"model_type": "mixtral", "num_local_experts": 4},
    "bert": _BLOCKS | _VOCABULARY | {"model_type": "bert", "max_position_embeddings": 32},
    "vit": _BLOCKS | {"model_type": "vit", "image_size": 32, "patch_size": 8, "num_labels": 5},
    "resnet": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 16],
        "depths": [1, 1, 2, 1],
        "num_labels": 5,
    },
    "t5": _VOCABULARY
    | {
        "model_type": "t5",
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 2,
    },
    "albert": _BLOCKS | _VOCABULARY | {"model_type": "albert", "embedding_size": 16, "max_position_embeddings": 32},
}
