"""The models that are run: four kinds of work, each cheap enough for a core and heavy enough to be measured.

Blocks take 5 ms and more, so that a pass is 10 ms and more and bookkeeping does not dominate. None has dropout or tied
weights. `gpt` is even, `unbalanced` has a head as heavy as several blocks, `vit` has a light head and no embedding,
`llama` has grouped attention and a gated feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.tracing import TraceLoader

NUM_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthModel:
    """A transformers configuration and the batch that one pass takes. `cuts` are the layers before which plans cut."""

    name: str
    config: Mapping[str, Any]
    microbatch_size: int
    sequence_length: int | None = None

    def loader(self) -> TraceLoader:
        """Builds and traces it in any process."""
        return TraceLoader(source=self.config, sequence_length=self.sequence_length)


_GPT = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": NUM_BLOCKS, "n_head": 6, "n_embd": 384,
    "n_positions": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip

MODELS = {
    model.name: model
    for model in (
        TruthModel(name="gpt", config=_GPT | {"vocab_size": 4096}, microbatch_size=2, sequence_length=128),
        TruthModel(name="unbalanced", config=_GPT | {"vocab_size": 16384}, microbatch_size=2, sequence_length=128),
        TruthModel(
            name="vit",
            config={
                "model_type": "vit", "architectures": ["ViTForImageClassification"], "num_hidden_layers": NUM_BLOCKS,
                "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "image_size": 224,
                "patch_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                "num_labels": 1000,
            },
            microbatch_size=1,
        ),
        TruthModel(
            name="llama",
            config={
                "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": NUM_BLOCKS,
                "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 1024,
                "vocab_size": 8192, "max_position_embeddings": 256, "tie_word_embeddings": False,
            },
            microbatch_size=2,
            sequence_length=128,
        ),
    )
}  # fmt: skip

CALIBRATION = TruthModel(
    name="calibration",
    config=_GPT | {"vocab_size": 2048, "n_embd": 320, "n_head": 5},
    microbatch_size=2,
    sequence_length=96,
)
"""Not among the measured ones: what an action costs beside its passes is read off it."""
