"""State-space and recurrent models."""

from __future__ import annotations

from benchmarks.small_models.entry import GROUPED, HEADS_OF_8, IDS, TEXT, entries

STATE_SPACES = entries(
    "state space",
    {
        "mamba": (
            "MambaForCausalLM",
            IDS | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4},
        ),
        "mamba2": (
            "Mamba2ForCausalLM",
            IDS
            | {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "state_size": 8,
                "num_heads": 8,
                "head_dim": 8,
                "n_groups": 1,
                "chunk_size": 8,
            },
        ),
        "falcon_mamba": (
            "FalconMambaForCausalLM",
            IDS | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4},
        ),
        "jamba": (
            "JambaForCausalLM",
            GROUPED
            | {
                "num_hidden_layers": 4,
                "attn_layer_period": 2,
                "attn_layer_offset": 1,
                "expert_layer_period": 2,
                "expert_layer_offset": 1,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "mamba_d_state": 8,
                "mamba_dt_rank": 4,
                "use_mamba_kernels": False,
            },
        ),
        "bamba": (
            "BambaForCausalLM",
            GROUPED
            | {
                "attn_layer_indices": [1],
                "mamba_n_heads": 8,
                "mamba_d_head": 8,
                "mamba_d_state": 8,
                "mamba_n_groups": 1,
                "mamba_chunk_size": 8,
            },
        ),
        "zamba2": (
            "Zamba2ForCausalLM",
            TEXT
            | {
                "num_hidden_layers": 4,
                "mamba_d_state": 8,
                "mamba_headdim": 8,
                "n_mamba_heads": 8,
                "mamba_ngroups": 1,
                "chunk_size": 8,
                "hybrid_layer_ids": [1, 3],
                "num_mem_blocks": 1,
                "use_mem_rope": False,
                "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
                "num_key_value_heads": 4,
                "adapter_rank": 4,
            },
        ),
        "falcon_h1": (
            "FalconH1ForCausalLM",
            HEADS_OF_8
            | {
                "mamba_d_ssm": 64,
                "mamba_n_heads": 8,
                "mamba_d_head": 8,
                "mamba_d_state": 8,
                "mamba_n_groups": 1,
                "mamba_chunk_size": 8,
            },
        ),
        "recurrent_gemma": (
            "RecurrentGemmaForCausalLM",
            GROUPED
            | {
                "lru_width": 32,
                "attention_window_size": 8,
                "num_hidden_layers": 3,
                "block_types": ["recurrent", "recurrent", "attention"],
            },
        ),
        "rwkv": (
            "RwkvForCausalLM",
            IDS
            | {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "attention_hidden_size": 32,
                "context_length": 64,
                "rescale_every": 0,
            },
        ),
        "qwen3_next": (
            "Qwen3NextForCausalLM",
            HEADS_OF_8
            | {
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 16,
            },
        ),
    },
)
