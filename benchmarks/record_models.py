"""Writes the shipped model records: real transformers classes on fake tensors, nothing downloaded.

Run as `python -m benchmarks.record_models [NAME ...]`; needs the `torch` extra. Configurations are the published ones,
written out here with their source.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner import codec
from profiles.measuring.record import record
from profiles.model import ModelRecord
from profiles.tracing import TraceLoader

TARGET = Path(__file__).parent.parent / "profiles" / "data" / "models"
DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One record: the configuration, the sequence length (None for images) and where the configuration is from."""

    config: dict[str, Any]
    sequence_length: int | None
    source: str


GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
RECIPES = {
    "gpt2-small": Recipe(
        config=GPT2, sequence_length=1024, source="Radford et al. 2019; the defaults of transformers' GPT2Config"
    ),
    "llama-3-8b": Recipe(
        config=LLAMA
        | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
        sequence_length=8192,
        source="Llama Team 2024, table 3 (8B)",
    ),
    "llama-3-70b": Recipe(
        config=LLAMA
        | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
        sequence_length=4096,
        source="Llama Team 2024, table 3 (70B)",
    ),
    "llama-3.1-405b": Recipe(
        config=LLAMA
        | {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128},
        sequence_length=8192,
        source="Llama Team 2024, table 3 (405B), at the sequence length of most of its pre-training",
    ),
    "bert-large": Recipe(
        config={
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
        sequence_length=512,
        source="Devlin et al. 2019, BERT-large (uncased vocabulary), masked language model without pooler",
    ),
    "vit-l-16": Recipe(
        config={
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 224,
            "patch_size": 16,
            "num_labels": 1000,
        },
        sequence_length=None,
        source="Dosovitskiy et al. 2021, table 1 (ViT-Large), patches of 16, 1,000 classes",
    ),
    "resnet-50": Recipe(
        config={"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "num_labels": 1000},
        sequence_length=None,
        source="He et al. 2016, table 1 (50-layer), 224 x 224, 1,000 classes; defaults of transformers' ResNetConfig",
    ),
}


def make(name: str) -> ModelRecord:
    """The record of one recipe, at batch size 1 in bfloat16."""
    recipe = RECIPES[name]
    loader = TraceLoader(source=recipe.config, sequence_length=recipe.sequence_length, dtype=DTYPE, device="meta")
    return record(
        loader(1), name=name, dtype=DTYPE, sequence_length=recipe.sequence_length, notes=(f"model: {recipe.source}",)
    )


def main() -> None:
    """Writes the named records (all of them without a name) and prints their parameters, FLOPs and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *RECIPES], help="records to write (default: all)")
    parser.add_argument("--to", type=Path, default=TARGET, help="folder to write to")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or RECIPES:
        start = time.process_time()
        made = make(name)
        text = codec.dumps(made, indent=1)
        (arguments.to / f"{name}.json").write_text(text, encoding="utf-8")
        flops = sum(work.forward_flops for work in made.work.values())
        seconds = time.process_time() - start
        print(
            f"{name}: {len(made.graph.layers)} layers, {flops:.4g} FLOP forward, {len(text)} bytes, {seconds:.1f} CPU s"
        )


if __name__ == "__main__":
    main()
