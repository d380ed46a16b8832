"""Models of images and text."""

from __future__ import annotations

from benchmarks.small_models.entry import GROUPED, HEADS_OF_8, IMAGE_SIZE, PATCH_SIZE, SIZES, TEXT, Values, entries

EYE: Values = SIZES | {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "projection_dim": 32}
CLIP_EYE = EYE | {"model_type": "clip_vision_model"}
SIGLIP_EYE = EYE | {"model_type": "siglip_vision_model"}
LANGUAGE = GROUPED | {"model_type": "llama"}
MULTIMODAL = entries(
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
