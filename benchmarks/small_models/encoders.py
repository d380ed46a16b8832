"""Encoders."""

from __future__ import annotations

from benchmarks.small_models.entry import IDS, POSITIONS, TEXT, entries

ENCODERS = entries(
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
