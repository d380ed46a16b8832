"""Mixtures of experts."""

from __future__ import annotations

from benchmarks.small_models.entry import GROUPED, HEADS_OF_8, IDS, POSITIONS, TEXT, entries

MIXTURES = entries(
    "mixture of experts",
    {
        "mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 4}),
        "qwen2_moe": (
            "Qwen2MoeForCausalLM",
            GROUPED
            | {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 32,
            },
        ),
        "qwen3_moe": (
            "Qwen3MoeForCausalLM",
            HEADS_OF_8 | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        ),
        "deepseek_v2": (
            "DeepseekV2ForCausalLM",
            TEXT
            | {
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 4,
                "v_head_dim": 8,
                "n_routed_experts": 4,
                "n_shared_experts": 1,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "num_key_value_heads": 4,
            },
        ),
        "deepseek_v3": (
            "DeepseekV3ForCausalLM",
            TEXT
            | {
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 4,
                "v_head_dim": 8,
                "n_routed_experts": 8,
                "n_shared_experts": 1,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "first_k_dense_replace": 1,
                "n_group": 2,
                "topk_group": 1,
                "num_key_value_heads": 4,
            },
        ),
        "olmoe": ("OlmoeForCausalLM", GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}),
        "phimoe": ("PhimoeForCausalLM", GROUPED | {"num_local_experts": 4}),
        "granitemoe": ("GraniteMoeForCausalLM", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
        "gpt_oss": (
            "GptOssForCausalLM",
            HEADS_OF_8 | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        ),
        "dbrx": (
            "DbrxForCausalLM",
            IDS
            | {
                "d_model": 32,
                "n_heads": 4,
                "n_layers": 2,
                "max_seq_len": 64,
                "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
                "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
            },
        ),
        "jetmoe": (
            "JetMoeForCausalLM",
            IDS
            | POSITIONS
            | {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_key_value_heads": 2,
                "kv_channels": 8,
                "intermediate_size": 64,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
        ),
        "glm4_moe": (
            "Glm4MoeForCausalLM",
            HEADS_OF_8
            | {
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
            },
        ),
        "ernie4_5_moe": (
            "Ernie4_5_MoeForCausalLM",
            GROUPED | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 1},
        ),
        "llama4_text": (
            "Llama4ForCausalLM",
            HEADS_OF_8 | {"intermediate_size_mlp": 64, "num_local_experts": 4, "attention_chunk_size": 8},
        ),
        "switch_transformers": (
            "SwitchTransformersForConditionalGeneration",
            IDS
            | {
                "d_model": 32,
                "d_kv": 8,
                "d_ff": 64,
                "num_layers": 2,
                "num_decoder_layers": 2,
                "num_heads": 4,
                "num_sparse_encoder_layers": 1,
                "num_sparse_decoder_layers": 1,
                "num_experts": 4,
                "decoder_start_token_id": 2,
            },
        ),
    },
)
