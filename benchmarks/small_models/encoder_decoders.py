"""Encoder-decoder models."""

from __future__ import annotations

from benchmarks.small_models.entry import IDS, POSITIONS, entries

ENCODER_DECODERS = entries(
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
