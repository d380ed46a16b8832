"""Models in the arguments of Megatron-LM and the configurations of torchtitan, against a recorded model."""

from __future__ import annotations

from itertools import pairwise

import pytest

from planner.errors import InputError
from planner.workload import Training
from profiles.importers import read_text
from profiles.model import ModelRecord
from profiles.records import load_record

LLAMA_8B = """
GPUS=16
TP=2
torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 \\
  --ffn-hidden-size 14336 --swiglu --group-query-attention --num-query-groups 8 --bf16 \\
  --untie-embeddings-and-output-weights --vocab-size 128256 --tensor-model-parallel-size $TP \\
  --global-batch-size 128  # one step
"""
TITAN_8B = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\nglobal_batch_size = 128\n'


def read(text: str) -> ModelRecord:
    made = read_text(text)
    assert isinstance(made, ModelRecord)
    return made


@pytest.mark.parametrize("text", [LLAMA_8B, TITAN_8B], ids=["megatron", "torchtitan"])
def test_llama_8b_by_its_shape_is_the_recorded_one(text: str) -> None:
    """The same matrices (norms are left out), products, keys and values."""
    made, recorded = read(text), load_record("llama-3-8b")
    ours, theirs = made.graph.layers[1:33], recorded.graph.layers[1:33]
    assert {layer.parameter_bytes for layer in ours} == {
        layer.parameter_bytes - layer.replicated_parameter_bytes for layer in theirs
    }
    assert made.graph.layers[0].parameter_bytes == recorded.graph.layers[0].parameter_bytes
    assert made.graph.tied == ()
    for field in ("forward_flops", "backward_flops"):
        mine, traced = (getattr(r.work[layers[3].id], field) for r, layers in ((made, ours), (recorded, theirs)))
        assert mine == traced, field
    assert [layer.kv_bytes_per_token for layer in ours] == [layer.kv_bytes_per_token for layer in theirs]
    assert [layer.context_bytes_per_sample for layer in ours] == [layer.context_bytes_per_sample for layer in theirs]
    assert made.workload is not None
    assert (made.workload.global_batch_size, made.workload.sequence_length) == (128, 8192)


def test_precision_follows_the_arguments() -> None:
    half, single = read(LLAMA_8B), read(LLAMA_8B.replace("--bf16", ""))
    assert isinstance(half.workload, Training)
    assert isinstance(single.workload, Training)
    assert (half.dtype, half.workload.weight_bytes_per_parameter, half.workload.optimizer_bytes_per_parameter) == (
        "bfloat16",
        2.0,
        12.0,
    )
    assert (single.dtype, single.workload.weight_bytes_per_parameter) == ("float32", 4.0)
    assert single.graph.layers[1].parameter_bytes == 2 * half.graph.layers[1].parameter_bytes


def test_defaults_of_megatron() -> None:
    """4 h wide, all heads with keys of their own, tied embedding padded to 128 x tensor degree."""
    made = read("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 1000 --fp16")
    block, embedding = made.graph.layers[1], made.graph.layers[0]
    assert block.parameter_bytes == 2 * 12 * 64**2
    assert embedding.parameter_bytes == 2 * 1024 * 64
    assert made.graph.tied[0].layers == ("embedding", "head")
    assert made.workload is None
    wide = read("--num-layers 2 --hidden-size 96 --num-attention-heads 4 --seq-length 16 --swiglu --fp16")
    assert wide.graph.layers[0].parameter_bytes == 2 * (4 * 96 * 96 + 3 * 96 * 256)


def test_fused_attention_keeps_no_scores() -> None:
    arguments = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --fp16"
    fused, unfused = read(arguments), read(f"{arguments} --attention-backend unfused")
    kept = [made.work["block.0"].activation_bytes for made in (fused, unfused)]
    assert kept[1] - kept[0] == 5 * 4 * 16**2
    assert fused.work["block.0"].selective_activation_bytes is None
    assert unfused.work["block.0"].selective_activation_bytes == kept[0]


def test_graphs_are_chains_of_blocks() -> None:
    for text in (LLAMA_8B, TITAN_8B):
        graph = read(text).graph
        ids = [layer.id for layer in graph.layers]
        assert [(edge.source, edge.target) for edge in graph.edges] == list(pairwise(ids))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LLAMA_8B + " --num-experts 8", "--num-experts makes layers"),
        (LLAMA_8B.replace("--seq-length 8192", ""), "no --seq-length"),
        (LLAMA_8B.replace("--hidden-size 4096", "--hidden-size wide"), "--hidden-size is 'wide'"),
        (LLAMA_8B.replace("--num-layers 32", "--num-layers 0"), "no --num-layers: give it, at least 1"),
        (TITAN_8B.replace("8B", "9B"), "'llama3' '9B' is not known"),
        (TITAN_8B.replace("8192", "-3"), "training.seq_len is '-3'"),
        (TITAN_8B.replace("[training]", "[training"), "no TOML"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("[", "\\[")):
        read(text)
