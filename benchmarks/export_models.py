"""Which models are exported as instances: published sizes, written out with their source.

`layers` in the name (`-8l`) says where fewer repeated blocks are kept than the published model has, to stay below some
1,500 operators. Configuration values that are not named are the defaults of transformers, which are those of the
model that `source` names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One export. `length` tokens for language models; `inputs` (name -> shape, integers for `*_ids`) for classes that
    the planner cannot feed by itself, with the field of the model's answer that is its `output`."""

    config: dict[str, Any]
    source: str
    length: int | None = None
    inputs: dict[str, Shape] = field(default_factory=dict)
    output: str = "logits"


def _language(kind: str, architecture: str, source: str, length: int = 1024, **values: Any) -> Recipe:
    return Recipe(config={"model_type": kind, "architectures": [architecture], **values}, source=source, length=length)


def _vision(kind: str, architecture: str, source: str, **values: Any) -> Recipe:
    return Recipe(
        config={"model_type": kind, "architectures": [architecture], "num_labels": 1000, **values}, source=source
    )


def _sizes(hidden: int, inner: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


LANGUAGE = {
    "gpt2": _language("gpt2", "GPT2LMHeadModel", "Radford et al. 2019, 124M"),
    "llama-3-8b": _language(
        "llama", "LlamaForCausalLM", "Llama Team 2024, table 3 (8B)",
        vocab_size=128256, num_key_value_heads=8, max_position_embeddings=8192, **_sizes(4096, 14336, 32, 32),
    ),
    "mistral-7b": _language(
        "mistral", "MistralForCausalLM", "Jiang et al. 2023, table 1 (7B v0.1)", num_key_value_heads=8,
        **_sizes(4096, 14336, 32, 32),
    ),
    "qwen2-7b": _language(
        "qwen2", "Qwen2ForCausalLM", "Qwen Team 2024, table 1 (7B)",
        vocab_size=152064, num_key_value_heads=4, **_sizes(3584, 18944, 28, 28),
    ),
    "gemma-2b": _language(
        "gemma", "GemmaForCausalLM", "Gemma Team 2024, table 1 (2B)", num_key_value_heads=1, head_dim=256,
        **_sizes(2048, 16384, 18, 8),
    ),
    "phi-2": _language(
        "phi", "PhiForCausalLM", "Javaheripi et al. 2023 (2.7B)", partial_rotary_factor=0.4,
        **_sizes(2560, 10240, 32, 32),
    ),
    "opt-1.3b": _language(
        "opt", "OPTForCausalLM", "Zhang et al. 2022, table 1 (1.3B)",
        hidden_size=2048, ffn_dim=8192, num_hidden_layers=24, num_attention_heads=32, word_embed_proj_dim=2048,
    ),
    "bloom-560m": _language(
        "bloom", "BloomForCausalLM", "BigScience 2022, table 3 (560M)", hidden_size=1024, n_layer=24, n_head=16,
        vocab_size=250880,
    ),
    "falcon-7b": Recipe(
        config={"model_type": "falcon", "architectures": ["FalconForCausalLM"]},
        source="Almazrouei et al. 2023 (7B)", inputs={"input_ids": (1, 1024)},
    ),
    "pythia-1b": _language(
        "gpt_neox", "GPTNeoXForCausalLM", "Biderman et al. 2023, table 1 (1B)", vocab_size=50304,
        **_sizes(2048, 8192, 16, 8),
    ),
    "olmo-1b": _language(
        "olmo", "OlmoForCausalLM", "Groeneveld et al. 2024, table 1 (1B)", num_key_value_heads=16,
        **_sizes(2048, 8192, 16, 16),
    ),
    "bert-large": _language(
        "bert", "BertForMaskedLM", "Devlin et al. 2019 (large)", length=512, **_sizes(1024, 4096, 24, 16)
    ),
    "roberta-base": _language(
        "roberta", "RobertaForMaskedLM", "Liu et al. 2019 (base)", length=512, max_position_embeddings=514,
    ),
    "electra-base": _language(
        "electra", "ElectraForMaskedLM", "Clark et al. 2020 (base)", length=512, embedding_size=768,
        **_sizes(768, 3072, 12, 12),
    ),
    "albert-base": _language(
        "albert", "AlbertForMaskedLM", "Lan et al. 2020 (base)", length=512, **_sizes(768, 3072, 12, 12)
    ),
    "distilbert": _language("distilbert", "DistilBertForMaskedLM", "Sanh et al. 2019", length=512),
    "deberta-v3-base": _language(
        "deberta-v2", "DebertaV2ForMaskedLM", "He et al. 2021 (base)", length=512, vocab_size=128100,
        relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type=["p2c", "c2p"], max_relative_positions=-1, position_biased_input=False, type_vocab_size=0,
        **_sizes(768, 3072, 12, 12),
    ),
}  # fmt: skip

MIXTURES = {
    "mixtral-8x7b-8l": _language(
        "mixtral", "MixtralForCausalLM", "Jiang et al. 2024, table 1 (8x7B, 8 of 32 layers)",
        **_sizes(4096, 14336, 8, 32),
    ),
    "qwen1.5-moe-12l": _language(
        "qwen2_moe", "Qwen2MoeForCausalLM", "Qwen Team 2024 (MoE-A2.7B, 12 of 24 layers)",
        **_sizes(2048, 5632, 12, 16),
    ),
}  # fmt: skip

ENCODER_DECODERS = {
    "t5-base": _language(
        "t5", "T5ForConditionalGeneration", "Raffel et al. 2020 (base)", length=512,
        d_model=768, d_ff=3072, num_layers=12, num_heads=12,
    ),
    "bart-large": _language("bart", "BartForConditionalGeneration", "Lewis et al. 2020 (large)"),
    "whisper-small": Recipe(
        config={
            "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 768,
            "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
        },
        source="Radford et al. 2023, table 1 (small): 30 s of speech, 448 tokens",
        inputs={"input_features": (1, 80, 3000), "decoder_input_ids": (1, 448)},
    ),
}  # fmt: skip

SPEECH = {
    "wav2vec2-base": Recipe(
        config={"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]},
        source="Baevski et al. 2020 (base): 10 s of 16 kHz",
        inputs={"input_values": (1, 160_000)},
    ),
    "hubert-base": Recipe(
        config={"model_type": "hubert", "architectures": ["HubertForCTC"]},
        source="Hsu et al. 2021 (base): 10 s of 16 kHz",
        inputs={"input_values": (1, 160_000)},
    ),
}

VISION = {
    "vit-large": _vision(
        "vit", "ViTForImageClassification", "Dosovitskiy et al. 2021, table 1 (large)", **_sizes(1024, 4096, 24, 16)
    ),
    "swin-tiny": _vision("swin", "SwinForImageClassification", "Liu et al. 2021 (tiny)"),
    "convnext-tiny": _vision("convnext", "ConvNextForImageClassification", "Liu et al. 2022 (tiny)"),
    "resnet-50": _vision("resnet", "ResNetForImageClassification", "He et al. 2016, table 1 (50 layers)"),
    "segformer-b2": _vision(
        "segformer", "SegformerForImageClassification", "Xie et al. 2021, table 6 (B2)",
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512],
    ),
    "beit-base": _vision("beit", "BeitForImageClassification", "Bao et al. 2022 (base)"),
    "clip-vit-b-32": Recipe(
        config={"model_type": "clip", "architectures": ["CLIPModel"]},
        source="Radford et al. 2021, table 20 (ViT-B/32): one image, one text of 77 tokens",
        inputs={"input_ids": (1, 77), "pixel_values": (1, 3, 224, 224)},
        output="logits_per_image",
    ),
}  # fmt: skip

RECIPES = LANGUAGE | MIXTURES | ENCODER_DECODERS | SPEECH | VISION
