"""Shapes of transformers: the published formulas, with and without a vocabulary, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InputError
from profiles.importers import read_text
from profiles.model import LayerWork, ModelRecord
from profiles.records import in_dtype
from profiles.sources import load_source
from profiles.transformer import TransformerShape, transformer_record

FOLDER = Path(__file__).parents[1] / "instances" / "calculon"
SMALL = {"hidden": 16, "feedforward": 64, "seq_size": 8, "attn_heads": 2, "attn_size": 8, "num_blocks": 3}


def read(**changes: object) -> ModelRecord:
    made = read_text(json.dumps(SMALL | changes))
    assert isinstance(made, ModelRecord)
    return made


@pytest.mark.parametrize(
    ("name", "parameters", "blocks"),
    [("gpt3-175B", 175e9, 96), ("megatron-22B", 22e9, 48), ("turing-530B", 530e9, 105), ("megatron-1T", 1e12, 128)],
)
def test_published_models_have_their_sizes(name: str, parameters: float, blocks: int) -> None:
    record = load_source(str(FOLDER / f"{name}.json"))
    assert isinstance(record, ModelRecord)
    assert len(record.graph.layers) == blocks
    counted = sum(layer.parameter_bytes for layer in record.graph.layers) / 2
    assert counted == pytest.approx(parameters, rel=0.02)


def test_a_block_follows_the_published_formulas() -> None:
    """h = A = 16, f = 4 h, s = 8, a = 2: 24 s h^2 + 4 s^2 h FLOPs, 12 h^2 parameters, 34 s h + 5 a s^2 kept."""
    record = read()
    layer, work = record.graph.layers[1], record.work["block.1"]
    assert layer.parameter_bytes == 2 * 12 * 16**2
    assert work.forward_flops == 24 * 8 * 16**2 + 4 * 8**2 * 16
    assert work.backward_flops == 2 * work.forward_flops
    assert work.activation_bytes == 34 * 8 * 16 + 5 * 2 * 8**2
    assert work.selective_activation_bytes == 34 * 8 * 16
    assert work.selective_flops == 4 * 8**2 * 16
    assert work.sequence_activation_bytes == 10 * 8 * 16
    assert layer.tensor_collective_bytes_per_sample == 2 * 2 * 8 * 16
    assert layer.kv_bytes_per_token == 2 * 2 * 8 * 2
    assert layer.context_bytes_per_sample == 8 * layer.kv_bytes_per_token
    assert [edge.bytes_per_sample for edge in record.graph.edges] == [2 * 8 * 16] * 2


def test_attention_may_be_narrower_than_the_model() -> None:
    """A = 8: 4 h A + 2 h f parameters, s (10 h + 8 A + 4 f) kept outside the core."""
    record = read(attn_size=4)
    assert record.graph.layers[0].parameter_bytes == 2 * (4 * 16 * 8 + 2 * 16 * 64)
    assert record.work["block.0"].selective_activation_bytes == 8 * (10 * 16 + 8 * 8 + 4 * 64)


def test_a_vocabulary_adds_embedding_and_tied_head() -> None:
    record = read(vocab_size=100)
    assert [layer.id for layer in record.graph.layers] == ["embedding", "block.0", "block.1", "block.2", "head"]
    assert record.graph.tied[0].parameter_bytes == 2 * 100 * 16 == record.graph.layers[0].parameter_bytes
    assert record.work["head"].forward_flops == 2 * 8 * 16 * 100
    assert record.work["head"].activation_bytes == 4 * 8 * 16 + 4 * 8 * 100  # two inputs, logits in single precision
    assert not record.provenance.notes
    assert "no vocabulary" in read().provenance.notes[0]


def test_bytes_follow_the_dtype() -> None:
    single = in_dtype(read(), "float32")
    work, twice = read().work["block.0"], single.work["block.0"]
    assert isinstance(work, LayerWork)
    assert twice.selective_activation_bytes == 2 * (work.selective_activation_bytes or 0)
    assert twice.sequence_activation_bytes == 2 * work.sequence_activation_bytes
    assert single.graph.layers[0].kv_bytes_per_token == 2 * read().graph.layers[0].kv_bytes_per_token


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": 0}, "hidden is '0'"),
        ({"hidden": 1.5}, "hidden is '1.5'"),
        ({"num_blocks": True}, "num_blocks is 'True'"),
        ({"attn_size": 10**9}, "head_size is 1000000000: it must be between"),
        ({"experts": 8}, "'experts' is no number of a calculon model"),
        ({"vocab_size": -1}, "vocab_size is '-1'"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(**changes)


def test_a_missing_number_is_named() -> None:
    values = {key: value for key, value in SMALL.items() if key != "feedforward"}
    with pytest.raises(InputError, match="no 'feedforward'"):
        read_text(json.dumps(values))
    with pytest.raises(InputError, match="is a JSON object"):
        read_text("[]", format="calculon")


def test_a_shape_is_checked_where_it_is_built() -> None:
    with pytest.raises(InputError, match="num_blocks is 0"):
        TransformerShape(hidden=1, feedforward=1, sequence_length=1, heads=1, head_size=1, num_blocks=0)
    shape = TransformerShape(hidden=4, feedforward=8, sequence_length=2, heads=1, head_size=4, num_blocks=1)
    assert transformer_record("tiny", shape).name == "tiny"


def test_a_block_holds_the_gradients_of_its_products_for_the_weight_pass() -> None:
    """18 s h of the 32 s h that Qi et al. 2024 keep for W, the rest being inputs; with grouped queries and a gate
    2 s (A + 2 K + 2 f + 2 h).
    """
    s, h = 16, 8
    shape = TransformerShape(hidden=h, feedforward=4 * h, sequence_length=s, heads=4, head_size=2, num_blocks=1)
    (block,) = transformer_record("gpt", shape).work.values()
    assert block.weight_pass_bytes == 18 * s * h
    (block,) = transformer_record("llama", replace(shape, key_value_heads=2, gated=True)).work.values()
    assert block.weight_pass_bytes == 2 * s * (h + 2 * 4 + 2 * 4 * h + 2 * h)
    *_, head = transformer_record("headed", replace(shape, vocabulary=100)).work.values()
    assert head.weight_pass_bytes == 2 * s * 100
