"""Small configurations of real transformers classes, by kind: two to four blocks, some ten thousand parameters.

Everything that is not named is the default of the class; the structure (attention, routing, normalisation, ties, skips)
is that of the real model. `LENGTH` tokens per sample where an entry says nothing else. `LARGE` has published sizes, for
shapes only.
"""

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


def _entries(kind: str, models: dict[str, tuple[str, Values]], length: int = LENGTH) -> dict[str, Entry]:
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

DECODERS = _entries(
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

MIXTURES = _entries(
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

STATE_SPACES = _entries(
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

ENCODERS = _entries(
    "encoder",
    {
        "bert": ("BertForMaskedLM", TEXT),
        "roberta": ("RobertaForMaskedLM", TEXT),
        "electra": ("ElectraForMaskedLM", TEXT | {"embedding_size": 16}),
        "albert": ("AlbertForMaskedLM", TEXT | {"embedding_size": 16}),
        "distilbert": (
            "DistilBertForMaskedLM",
            IDS | POSITIONS | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        ),
        "mpnet": ("MPNetForMaskedLM", TEXT),
        "deberta-v2": (
            "DebertaV2ForMaskedLM",
            TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
        ),
        "modernbert": ("ModernBertForMaskedLM", TEXT | {"cls_token_id": 0, "sep_token_id": 1, "local_attention": 8}),
        "longformer": ("LongformerForMaskedLM", TEXT | {"attention_window": 4}),
        "big_bird": ("BigBirdForMaskedLM", TEXT | {"attention_type": "original_full"}),
        "roformer": ("RoFormerForMaskedLM", TEXT | {"embedding_size": 16}),
        "convbert": ("ConvBertForMaskedLM", TEXT | {"embedding_size": 16, "head_ratio": 2}),
        "mobilebert": ("MobileBertForMaskedLM", TEXT | {"embedding_size": 16, "intra_bottleneck_size": 16}),
        "fnet": ("FNetForMaskedLM", TEXT),
        "squeezebert": ("SqueezeBertForMaskedLM", TEXT | {"embedding_size": 32}),
    },
)

ENCODER_DECODERS = _entries(
    "encoder-decoder",
    {
        "t5": (
            "T5ForConditionalGeneration",
            IDS | {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 2},
        ),
        "umt5": (
            "UMT5ForConditionalGeneration",
            IDS | {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 2},
        ),
        "longt5": (
            "LongT5ForConditionalGeneration",
            IDS
            | {
                "d_model": 32,
                "d_kv": 8,
                "d_ff": 64,
                "num_layers": 2,
                "num_heads": 4,
                "local_radius": 3,
                "decoder_start_token_id": 2,
            },
        ),
        **{
            name: (
                made,
                IDS
                | POSITIONS
                | {
                    "d_model": 32,
                    "encoder_layers": 2,
                    "decoder_layers": 2,
                    "encoder_attention_heads": 4,
                    "decoder_attention_heads": 4,
                    "encoder_ffn_dim": 64,
                    "decoder_ffn_dim": 64,
                    "decoder_start_token_id": 2,
                },
            )
            for name, made in {
                "bart": "BartForConditionalGeneration",
                "mbart": "MBartForConditionalGeneration",
                "pegasus": "PegasusForConditionalGeneration",
                "marian": "MarianMTModel",
                "m2m_100": "M2M100ForConditionalGeneration",
                "blenderbot": "BlenderbotForConditionalGeneration",
            }.items()
        },
        "led": (
            "LEDForConditionalGeneration",
            IDS
            | {
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "decoder_start_token_id": 2,
                "attention_window": 4,
                "max_encoder_position_embeddings": 64,
                "max_decoder_position_embeddings": 64,
            },
        ),
        "prophetnet": (
            "ProphetNetForConditionalGeneration",
            IDS
            | POSITIONS
            | {
                "hidden_size": 32,
                "num_encoder_layers": 2,
                "num_decoder_layers": 2,
                "num_encoder_attention_heads": 4,
                "num_decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "decoder_start_token_id": 2,
            },
        ),
    },
)

PATCHES: Values = SIZES | {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "num_labels": 5}
LABELS: Values = {"num_labels": 5, "image_size": IMAGE_SIZE}
VISION = _entries(
    "vision",
    {
        "vit": ("ViTForImageClassification", PATCHES),
        "deit": ("DeiTForImageClassification", PATCHES),
        "beit": ("BeitForImageClassification", PATCHES),
        "dinov2": ("Dinov2ForImageClassification", PATCHES),
        "swin": (
            "SwinForImageClassification",
            LABELS | {"patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        ),
        "swinv2": (
            "Swinv2ForImageClassification",
            LABELS | {"patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        ),
        "convnext": (
            "ConvNextForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 2, 1]},
        ),
        "convnextv2": (
            "ConvNextV2ForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 2, 1]},
        ),
        "resnet": (
            "ResNetForImageClassification",
            {"num_labels": 5, "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 2, 1]},
        ),
        "regnet": (
            "RegNetForImageClassification",
            {
                "num_labels": 5,
                "embedding_size": 8,
                "hidden_sizes": [8, 16, 16, 16],
                "depths": [1, 1, 2, 1],
                "groups_width": 8,
            },
        ),
        "mobilenet_v2": ("MobileNetV2ForImageClassification", LABELS | {"depth_multiplier": 0.25}),
        "mobilevit": (
            "MobileViTForImageClassification",
            LABELS
            | {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "num_attention_heads": 4},
        ),
        "efficientnet": (
            "EfficientNetForImageClassification",
            LABELS | {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
        ),
        "poolformer": (
            "PoolFormerForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 2, 1]},
        ),
        "segformer": (
            "SegformerForSemanticSegmentation",
            LABELS
            | {
                "hidden_sizes": [8, 16, 16, 32],
                "depths": [1, 1, 1, 1],
                "num_attention_heads": [1, 2, 2, 4],
                "decoder_hidden_size": 16,
            },
        ),
        "pvt": (
            "PvtForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
        ),
        "focalnet": (
            "FocalNetForImageClassification",
            LABELS
            | {
                "embed_dim": 16,
                "depths": [1, 1],
                "hidden_sizes": [16, 32],
                "focal_levels": [2, 2],
                "focal_windows": [3, 3],
            },
        ),
        "videomae": ("VideoMAEForVideoClassification", PATCHES | {"num_frames": 4}),
    },
)

WAVES: Values = SIZES | {
    "vocab_size": 32,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 4],
    "conv_kernel": [10, 8, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 3,
}
SPEECH = _entries(
    "speech",
    {
        "wav2vec2": ("Wav2Vec2ForCTC", WAVES),
        "hubert": ("HubertForCTC", WAVES),
        "wavlm": ("WavLMForCTC", WAVES),
        "unispeech": ("UniSpeechForCTC", WAVES),
        "sew": ("SEWForCTC", WAVES | {"squeeze_factor": 2}),
        "wav2vec2-conformer": ("Wav2Vec2ConformerForCTC", WAVES),
        "whisper": (
            "WhisperForConditionalGeneration",
            IDS
            | {
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "decoder_start_token_id": 2,
                "num_mel_bins": 20,
                "max_source_positions": 32,
                "max_target_positions": 64,
            },
        ),
        "speech_to_text": (
            "Speech2TextForConditionalGeneration",
            IDS
            | {
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "decoder_start_token_id": 2,
                "input_feat_per_channel": 80,
                "conv_channels": 32,
                "max_source_positions": 128,
                "max_target_positions": 64,
            },
        ),
        "moonshine": (
            "MoonshineForConditionalGeneration",
            IDS
            | POSITIONS
            | {
                "hidden_size": 32,
                "intermediate_size": 64,
                "encoder_num_hidden_layers": 2,
                "decoder_num_hidden_layers": 2,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
                "decoder_start_token_id": 2,
            },
        ),
        "audio-spectrogram-transformer": (
            "ASTForAudioClassification",
            SIZES | {"num_labels": 5, "num_mel_bins": 32, "max_length": 64},
        ),
    },
)

EYE: Values = SIZES | {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "projection_dim": 32}
CLIP_EYE = EYE | {"model_type": "clip_vision_model"}
SIGLIP_EYE = EYE | {"model_type": "siglip_vision_model"}
LANGUAGE = GROUPED | {"model_type": "llama"}
MULTIMODAL = _entries(
    "multimodal",
    {
        "clip": ("CLIPModel", {"text_config": TEXT, "vision_config": EYE, "projection_dim": 32}),
        "siglip": ("SiglipModel", {"text_config": TEXT | {"projection_size": 32}, "vision_config": EYE}),
        "blip": (
            "BlipForConditionalGeneration",
            {
                "text_config": TEXT | {"encoder_hidden_size": 32},
                "vision_config": EYE,
                "projection_dim": 32,
                "image_text_hidden_size": 32,
            },
        ),
        "git": ("GitForCausalLM", TEXT | {"vision_config": EYE}),
        "llava": (
            "LlavaForConditionalGeneration",
            {"text_config": LANGUAGE, "vision_config": CLIP_EYE, "image_token_index": 60},
        ),
        "vipllava": (
            "VipLlavaForConditionalGeneration",
            {
                "text_config": LANGUAGE,
                "vision_config": CLIP_EYE,
                "image_token_index": 60,
                "vision_feature_layers": [-1, -2],
            },
        ),
        "paligemma": (
            "PaliGemmaForConditionalGeneration",
            {
                "text_config": HEADS_OF_8 | {"model_type": "gemma"},
                "vision_config": SIGLIP_EYE,
                "image_token_index": 60,
                "projection_dim": 32,
            },
        ),
        "gemma3": (
            "Gemma3ForConditionalGeneration",
            {
                "text_config": HEADS_OF_8 | {"model_type": "gemma3_text"},
                "vision_config": SIGLIP_EYE,
                "image_token_index": 60,
                "mm_tokens_per_image": 4,
            },
        ),
        "idefics3": (
            "Idefics3ForConditionalGeneration",
            {"text_config": LANGUAGE, "vision_config": EYE, "image_token_id": 60, "scale_factor": 2},
        ),
        "internvl": (
            "InternVLForConditionalGeneration",
            {
                "text_config": GROUPED | {"model_type": "qwen2"},
                "vision_config": EYE | {"model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8]},
                "image_token_id": 60,
            },
        ),
        "qwen2_vl": (
            "Qwen2VLForConditionalGeneration",
            {
                "text_config": GROUPED
                | {
                    "model_type": "qwen2_vl_text",
                    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]},
                },
                "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 8},
                "image_token_id": 60,
            },
        ),
        "mllama": (
            "MllamaForConditionalGeneration",
            {
                "text_config": GROUPED | {"cross_attention_layers": [1]},
                "vision_config": EYE | {"num_global_layers": 1},
                "image_token_index": 60,
            },
        ),
        "blip-2": (
            "Blip2ForConditionalGeneration",
            {
                "text_config": TEXT | {"model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32},
                "vision_config": EYE,
                "qformer_config": TEXT | {"encoder_hidden_size": 32},
                "num_query_tokens": 4,
                "image_token_index": 60,
            },
        ),
    },
    length=32,
)

MODELS: dict[str, Entry] = (
    DECODERS | MIXTURES | STATE_SPACES | ENCODERS | ENCODER_DECODERS | VISION | SPEECH | MULTIMODAL
)

LARGE: dict[str, Entry] = {
    "llama-3.1-405b": Entry(
        kind="published size",
        config={
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
        length=8192,
    ),
    "deepseek-v3": Entry(
        kind="published size",
        config={"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]},
        length=4096,
    ),
}
"""Llama Team 2024, table 3 (405B); DeepSeek-AI 2024, section 4.2 (671B, the defaults of transformers' class)."""
