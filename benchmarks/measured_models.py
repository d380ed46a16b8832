"""Models that are measured: ten kinds, each wide enough that products, not calls, take the time (some 0.1 s a pass)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_BLOCKS: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
}
_TEXT: dict[str, Any] = {
    "vocab_size": 4096, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
_DECODER = _BLOCKS | _TEXT | {"num_key_value_heads": 4, "tie_word_embeddings": False}


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A transformers configuration, tokens per sample (None where it has none) and samples per microbatch."""

    config: dict[str, Any]
    length: int | None = 128
    microbatch_size: int = 2


MODELS: dict[str, MeasuredModel] = {
    "gpt2": MeasuredModel(
        _TEXT | {"model_type": "gpt2", "n_layer": 6, "n_embd": 256, "n_head": 8, "n_positions": 256},
    ),
    "llama": MeasuredModel(_DECODER | {"model_type": "llama"}),
    "bert": MeasuredModel(_BLOCKS | _TEXT | {"model_type": "bert", "architectures": ["BertForMaskedLM"]}),
    "t5": MeasuredModel(
        _TEXT
        | {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "d_model": 256,
            "d_kv": 32,
            "d_ff": 1024,
            "num_layers": 4,
            "num_heads": 8,
            "decoder_start_token_id": 2,
        },
    ),
    "vit": MeasuredModel(
        _BLOCKS | {"model_type": "vit", "image_size": 96, "patch_size": 8, "num_labels": 100}, length=None
    ),
    "resnet": MeasuredModel(
        {
            "model_type": "resnet",
            "embedding_size": 32,
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 2, 2],
            "layer_type": "basic",
            "num_labels": 100,
        },
        length=None,
    ),
    "mixtral": MeasuredModel(_DECODER | {"model_type": "mixtral", "num_hidden_layers": 4, "num_local_experts": 4}),
    "deepseek_v3": MeasuredModel(
        _DECODER
        | {
            "model_type": "deepseek_v3",
            "num_hidden_layers": 4,
            "num_key_value_heads": 8,
            "q_lora_rank": 96,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 256,
            "first_k_dense_replace": 1,
        },
    ),
    "mamba2": MeasuredModel(
        _TEXT
        | {
            "model_type": "mamba2",
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_heads": 16,
            "head_dim": 32,
            "state_size": 32,
            "n_groups": 2,
            "chunk_size": 32,
        },
        length=64,
    ),
    "wav2vec2": MeasuredModel(
        _BLOCKS
        | {
            "model_type": "wav2vec2",
            "architectures": ["Wav2Vec2ForCTC"],
            "num_hidden_layers": 4,
            "conv_dim": [64, 64, 64],
            "conv_stride": [5, 4, 4],
            "conv_kernel": [10, 8, 4],
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
            "vocab_size": 64,
        },
        length=None,
        microbatch_size=1,
    ),
}
