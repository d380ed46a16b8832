# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Keys and values, experts and what only sequence parallelism divides, read off traces, by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CONFIGS, SEQUENCE_LENGTH
from torch import nn

from planner.runtime.program import RunnableModel
from profiles.measuring.record import record
from profiles.model import LayerWork
from profiles.tracing import TraceLoader
from profiles.tracing.trace import trace

HIDDEN, HEADS, KEY_VALUE_HEADS, INNER, EXPERTS, CHOSEN = 32, 4, 2, 64, 4, 2
FLOAT = 4


def layers_of(name: str):
    return {
        layer.id: layer for layer in TraceLoader(source=CONFIGS[name], sequence_length=SEQUENCE_LENGTH)(2).graph.layers
    }


def work_of(name: str, device: str = "cpu") -> dict[str, LayerWork]:
    return record(TraceLoader(source=CONFIGS[name], sequence_length=SEQUENCE_LENGTH, device=device)(1)).work


def test_grouped_heads_of_keys_and_values_count_once():
    layers = layers_of("llama")
    block = layers["model.layers.0"]
    assert block.kv_bytes_per_token == 2 * KEY_VALUE_HEADS * (HIDDEN // HEADS) * FLOAT
    assert block.context_bytes_per_sample == SEQUENCE_LENGTH * block.kv_bytes_per_token
    assert layers["lm_head"].kv_bytes_per_token == layers["model.embed_tokens"].context_bytes_per_sample == 0


def test_an_encoder_exchanges_but_keeps_nothing_for_text():
    block = layers_of("bert")["bert.encoder.layer.0"]
    assert block.context_bytes_per_sample == SEQUENCE_LENGTH * 2 * HIDDEN * FLOAT
    assert block.kv_bytes_per_token == 0


def test_experts_are_the_matrices_of_grouped_products():
    layers = layers_of("mixtral")
    block = layers["model.layers.0"]
    assert block.expert_parameter_bytes == EXPERTS * 3 * HIDDEN * INNER * FLOAT
    assert block.expert_dispatch_bytes_per_sample == SEQUENCE_LENGTH * CHOSEN * HIDDEN * FLOAT
    assert block.num_experts == EXPERTS
    assert block.expert_visits == SEQUENCE_LENGTH * CHOSEN / EXPERTS
    dense = block.parameter_bytes - block.expert_parameter_bytes
    attention, router, norms = 2 * HIDDEN * HIDDEN * 3 // 2, EXPERTS * HIDDEN, 2 * HIDDEN
    assert dense == (attention + router + norms) * FLOAT
    llama = layers_of("llama")["model.layers.0"]
    assert (llama.expert_parameter_bytes, llama.num_experts, llama.expert_visits) == (0, 0, 0)


def test_a_mixture_of_experts_traced_as_shapes_has_the_same_record():
    assert work_of("mixtral", "meta") == work_of("mixtral")


class Repeated(nn.Module):
    """Attention as transformers writes it with a mask: keys and values are repeated for all heads first."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8 + 4 + 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(rows).split([8, 4, 4], dim=-1)
        batch, length, _ = rows.shape
        query = query.view(batch, length, 2, 4).transpose(1, 2)
        key, value = (
            x.view(batch, length, 1, 4)
            .transpose(1, 2)[:, :, None]
            .expand(batch, 1, 2, length, 4)
            .reshape(batch, 2, length, 4)
            for x in (key, value)
        )
        mask = torch.ones(length, length, dtype=torch.bool)
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).flatten(1)


def test_repeated_heads_are_looked_through_and_a_mask_keeps_them():
    def batch(size: int, seed: int):
        return (torch.ones(size, 6, 8),), torch.ones(size, 48)

    graph = trace(
        RunnableModel(name="repeated", model=Repeated(), make_batch=batch, loss=nn.functional.mse_loss), 2
    ).graph
    assert sum(layer.kv_bytes_per_token for layer in graph.layers) == (4 + 4) * FLOAT
    assert sum(layer.context_bytes_per_sample for layer in graph.layers) == 6 * (4 + 4) * FLOAT


def test_what_a_gpt_block_keeps_whole():
    """Inputs of both norms and of both column-parallel products, and two statistics per token and norm."""
    work = work_of("gpt2")["transformer.h.1"]
    rows, statistics = 4 * SEQUENCE_LENGTH * HIDDEN * FLOAT, 2 * 2 * SEQUENCE_LENGTH * FLOAT
    assert work.sequence_activation_bytes == rows + statistics
    assert work.activation_bytes > 2 * work.sequence_activation_bytes


def test_the_loss_follows_the_divided_output():
    work = work_of("gpt2")
    assert work["loss"].sequence_activation_bytes == 0
    assert work["lm_head"].sequence_activation_bytes == work["lm_head"].activation_bytes
