"""Decoder-only models."""

from __future__ import annotations

from benchmarks.small_models.entry import GPT, GROUPED, HEADS_OF_8, IDS, POSITIONS, TEXT, entries

DECODERS = entries(
    "decoder",
    {
        "gpt2": ("GPT2LMHeadModel", GPT),
        "gpt_neo": (
            "GPTNeoForCausalLM",
            IDS
            | POSITIONS
            | {
                "hidden_size": 32,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 1]],
                "window_size": 8,
            },
        ),
        "gptj": ("GPTJForCausalLM", GPT | {"rotary_dim": 4}),
        "gpt_neox": ("GPTNeoXForCausalLM", TEXT),
        "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT),
        "codegen": ("CodeGenForCausalLM", GPT | {"rotary_dim": 4}),
        "opt": ("OPTForCausalLM", TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
        "bloom": ("BloomForCausalLM", IDS | {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
        "mpt": ("MptForCausalLM", IDS | {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
        "falcon": ("FalconForCausalLM", TEXT),
        "llama": ("LlamaForCausalLM", GROUPED),
        "mistral": ("MistralForCausalLM", GROUPED | {"sliding_window": 8}),
        "gemma": ("GemmaForCausalLM", HEADS_OF_8),
        "gemma2": ("Gemma2ForCausalLM", HEADS_OF_8 | {"sliding_window": 8}),
        "gemma3_text": ("Gemma3ForCausalLM", HEADS_OF_8 | {"sliding_window": 8}),
        "qwen2": ("Qwen2ForCausalLM", GROUPED),
        "qwen3": ("Qwen3ForCausalLM", HEADS_OF_8),
        "phi": ("PhiForCausalLM", TEXT),
        "phi3": ("Phi3ForCausalLM", GROUPED),
        "stablelm": ("StableLmForCausalLM", GROUPED),
        "starcoder2": ("Starcoder2ForCausalLM", GROUPED),
        "olmo2": ("Olmo2ForCausalLM", GROUPED),
        "cohere": ("CohereForCausalLM", GROUPED),
        "granite": ("GraniteForCausalLM", GROUPED),
        "glm4": ("Glm4ForCausalLM", HEADS_OF_8),
        "smollm3": ("SmolLM3ForCausalLM", GROUPED),
        "nemotron": ("NemotronForCausalLM", GROUPED),
        "xglm": (
            "XGLMForCausalLM",
            IDS | POSITIONS | {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
        ),
    },
)
