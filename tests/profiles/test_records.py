"""The shipped records: known parameter counts and FLOPs, complete, small, and readable without torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest

from planner.checks import check_graph
from planner.errors import InputError
from planner.graph import GraphIndex
from planner.profile import DTYPE_BYTES
from profiles.records import in_dtype, load_record, record_names

PARAMETERS = {
    "gpt2-small": 124_439_808,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "bert-large": 335_174_458,
    "vit-l-16": 304_326_632,
    "resnet-50": 25_557_032,
}
"""Published or counted on the class itself (BERT: masked language model head without pooler)."""
BLOCKS = {
    "gpt2-small": 12,
    "llama-3-8b": 32,
    "llama-3-70b": 80,
    "llama-3.1-405b": 126,
    "bert-large": 24,
    "vit-l-16": 24,
    "resnet-50": 16,
}
DECODERS = {
    "gpt2-small": (768, 0.5),
    "llama-3-8b": (4096, 0.5),
    "llama-3-70b": (8192, 0.5),
    "llama-3.1-405b": (16384, 0.5),
    "bert-large": (1024, 1.0),
}
"""Hidden size, and the part of the score matrix that is computed (causal: half)."""
MAX_FILE_BYTES = 300_000
FORWARD_FLOPS_OF_RESNET_50 = 2 * 4.09e9
"""4.09 billion multiply-adds (torchvision's model table)."""


def _parameters(record):
    size = DTYPE_BYTES[record.dtype]
    shared = sum(tied.parameter_bytes * (len(tied.layers) - 1) for tied in record.graph.tied)
    return (sum(layer.parameter_bytes for layer in record.graph.layers) - shared) / size


def test_every_record_is_known_here():
    assert set(record_names()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_known_ones(name):
    assert _parameters(load_record(name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_records_are_complete_chains_of_blocks(name):
    record = load_record(name)
    check_graph(record.graph)
    assert record.name == name
    assert set(record.work) == {layer.id for layer in record.graph.layers}
    assert GraphIndex(record.graph).is_chain()
    assert len(record.graph.layers) == BLOCKS[name] + 3  # embedding, blocks, head, loss
    assert record.provenance.notes


@pytest.mark.parametrize("name", PARAMETERS)
def test_files_are_small(name):
    assert files("profiles").joinpath("data", "models", f"{name}.json").stat().st_size < MAX_FILE_BYTES


@pytest.mark.parametrize("name", DECODERS)
def test_flops_are_two_per_parameter_and_token_plus_attention(name):
    record = load_record(name)
    hidden, share = DECODERS[name]
    layers = {layer.id: layer for layer in record.graph.layers}
    tokens = record.sequence_length
    embedding = record.graph.layers[0]
    weights = (sum(layer.parameter_bytes for layer in layers.values()) - embedding.parameter_bytes) / 2
    attention = 4 * BLOCKS[name] * hidden * tokens**2 * share
    forward = sum(work.forward_flops for work in record.work.values())
    backward = sum(work.backward_flops for work in record.work.values())
    assert forward == pytest.approx(2 * weights * tokens + attention, rel=0.03)
    assert backward == pytest.approx(4 * weights * tokens + 2.5 * attention, rel=0.03)


def test_flops_of_resnet_50():
    forward = sum(work.forward_flops for work in load_record("resnet-50").work.values())
    assert forward == pytest.approx(FORWARD_FLOPS_OF_RESNET_50, rel=0.01)


def test_a_llama_70b_block_keeps_what_its_operators_save():
    """Per token: the tensors that eager autograd saves, each counted once (2 bytes an element, norms in float32)."""
    work = load_record("llama-3-70b").work["model.layers.3"]
    tokens, hidden, key_value, inner, heads = 4096, 8192, 1024, 28672, 64
    norms = 2 * ((4 + 2 + 2) * hidden + 4)  # float32 input, normalised and scaled bfloat16 values, the inverse root
    attention = 2 * (hidden + 2 * key_value) + 2 * hidden + 4 * heads  # queries, keys, values; output; log-sum-exp
    mlp = 2 * 4 * inner  # gate, its activation, up, their product
    assert work.activation_bytes == tokens * (norms + attention + mlp)


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(InputError, match="llama-3-70b"):
        load_record("llama3-70b")


def test_another_dtype_scales_bytes_and_keeps_flops():
    half = load_record("gpt2-small")
    full = in_dtype(half, "float32")
    assert _parameters(full) == PARAMETERS["gpt2-small"]
    assert [e.bytes_per_sample for e in full.graph.edges] == [2 * e.bytes_per_sample for e in half.graph.edges]
    assert [t.parameter_bytes for t in full.graph.tied] == [2 * t.parameter_bytes for t in half.graph.tied]
    for layer, work in full.work.items():
        assert work.forward_flops == half.work[layer].forward_flops
        assert work.activation_bytes == 2 * half.work[layer].activation_bytes
    assert in_dtype(full, "bfloat16") == half


def test_another_dtype_scales_what_the_weight_pass_waits_for():
    made = load_record("gpt2-small")
    first, second = list(made.work)[:2]
    known = {
        first: replace(made.work[first], weight_pass_bytes=6),
        second: replace(made.work[second], weight_pass_bytes=None),
    }
    full = in_dtype(replace(made, work=made.work | known), "float32")
    assert (full.work[first].weight_pass_bytes, full.work[second].weight_pass_bytes) == (12, None)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InputError, match="float32"):
        in_dtype(load_record("gpt2-small"), "float7")


def test_records_need_no_torch():
    code = "import sys, profiles.analytic, profiles.records; profiles.records.load_record('gpt2-small'); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "key_value_heads", "head_size", "blocks"),
    [
        ("llama-3-8b", 8, 128, 32),
        ("llama-3-70b", 8, 128, 80),
        ("llama-3.1-405b", 8, 128, 126),
        ("gpt2-small", 12, 64, 12),
    ],
)
def test_decoders_keep_keys_and_values_per_token(name, key_value_heads, head_size, blocks):
    record = load_record(name)
    kept = [layer.kv_bytes_per_token for layer in record.graph.layers if layer.kv_bytes_per_token]
    assert kept == [2 * key_value_heads * head_size * 2] * blocks
    assert record.sequence_length is not None
    passed = [layer.context_bytes_per_sample for layer in record.graph.layers if layer.context_bytes_per_sample]
    assert passed == [size * record.sequence_length for size in kept]


@pytest.mark.parametrize("name", ["bert-large", "vit-l-16", "resnet-50"])
def test_what_generates_no_text_keeps_none(name):
    record = load_record(name)
    assert not any(layer.kv_bytes_per_token for layer in record.graph.layers)
    assert any(layer.context_bytes_per_sample for layer in record.graph.layers) == (name != "resnet-50")


@pytest.mark.parametrize("name", record_names())
def test_what_only_sequence_parallelism_divides_is_a_part_of_what_is_kept(name):
    work = load_record(name).work.values()
    assert all(0 <= one.sequence_activation_bytes <= one.activation_bytes for one in work)
    assert any(one.sequence_activation_bytes for one in work)
