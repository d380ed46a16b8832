"""Small configurations of real transformers classes, by kind: two to four blocks, some ten thousand parameters.

Everything that is not named is the default of the class; the structure (attention, routing, normalisation, ties, skips)
is that of the real model. `LENGTH` tokens per sample where an entry says nothing else. `LARGE` has published sizes, for
shapes only.
"""

from __future__ import annotations

from benchmarks.small_models.decoders import DECODERS
from benchmarks.small_models.encoder_decoders import ENCODER_DECODERS
from benchmarks.small_models.encoders import ENCODERS
from benchmarks.small_models.entry import Entry
from benchmarks.small_models.mixtures import MIXTURES
from benchmarks.small_models.multimodal import MULTIMODAL
from benchmarks.small_models.speech import SPEECH
from benchmarks.small_models.state_spaces import STATE_SPACES
from benchmarks.small_models.vision import VISION

__all__ = ["LARGE", "MODELS", "Entry"]

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
