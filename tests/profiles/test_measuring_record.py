# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Records: FLOPs and bytes counted on fake tensors are those of formulas and of real runs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CONFIGS, SEQUENCE_LENGTH

from planner import codec
from planner.runtime.program import LOSS_LAYER
from profiles.measuring.chain import LayerChain
from profiles.measuring.memory import KeptBytes
from profiles.measuring.record import record
from profiles.model import ModelRecord
from profiles.tracing import TraceLoader

HIDDEN, INNER, KEY_VALUE, TOKENS = 32, 64, 16, SEQUENCE_LENGTH


def _record(name, batch_size=1, device="cpu"):
    loader = TraceLoader(source=CONFIGS[name], sequence_length=SEQUENCE_LENGTH, device=device)
    return record(loader(batch_size), dtype="float32", sequence_length=SEQUENCE_LENGTH)


def _attention_flops(matmuls, causal=0.5):
    return 2 * matmuls * TOKENS * TOKENS * HIDDEN * causal


def test_flops_of_a_llama_block():
    work = _record("llama").work["model.layers.0"]
    weights = HIDDEN * (2 * HIDDEN + 2 * KEY_VALUE) + 3 * HIDDEN * INNER
    assert work.forward_flops == 2 * weights * TOKENS + _attention_flops(2)
    assert work.backward_flops == 4 * weights * TOKENS + _attention_flops(5)


def test_bidirectional_attention_counts_the_whole_score_matrix():
    work = _record("bert").work["bert.encoder.layer.0"]
    weights = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER
    assert work.forward_flops == 2 * weights * TOKENS + _attention_flops(2, causal=1)


def test_experts_count_once_for_each_chosen_one():
    work = _record("mixtral").work["model.layers.0"]
    attention, router = HIDDEN * (2 * HIDDEN + 2 * KEY_VALUE), HIDDEN * 4
    chosen = 2 * 3 * HIDDEN * INNER
    assert work.forward_flops == 2 * (attention + router + chosen) * TOKENS + _attention_flops(2)
    assert work.backward_flops == 4 * (attention + router + chosen) * TOKENS + _attention_flops(5)


@pytest.mark.parametrize("name", CONFIGS)
def test_fake_tensors_keep_what_real_ones_keep(name):
    made = _record(name)
    program = TraceLoader(source=CONFIGS[name], sequence_length=SEQUENCE_LENGTH)(1)
    chain = LayerChain(program)
    kept = KeptBytes(chain)
    chain.run(kept)
    held = {layer: kept.bytes_of[layer] + program.held_output_bytes(layer) for layer in made.work}
    recorded = {layer: work.activation_bytes for layer, work in made.work.items()}
    offsets = 4 * 4 if name == "mixtral" else 0  # of 4 experts, which the product for fake tensors does not keep
    assert all(held[layer] - recorded[layer] in (0, offsets) for layer in recorded)


def test_the_loss_holds_the_model_output_until_its_backward():
    """The engine holds the logits (vocabulary x tokens x 4 bytes) beside the log-softmax that autograd keeps."""
    program = TraceLoader(source=CONFIGS["llama"], sequence_length=SEQUENCE_LENGTH)(2)
    (logits,) = [edge.bytes_per_sample for edge in program.graph.edges if edge.target == LOSS_LAYER]
    assert program.held_output_bytes(LOSS_LAYER) == 2 * logits
    assert program.held_output_bytes(program.graph.layers[0].id) == 0
    assert _record("llama").work[LOSS_LAYER].activation_bytes >= 2 * logits


def test_no_score_matrix_is_kept():
    short, long = (
        record(TraceLoader(source=CONFIGS["llama"], sequence_length=length)(1)).work["model.layers.0"].activation_bytes
        for length in (16, 32)
    )
    assert long == 2 * short


def test_work_per_sample_does_not_depend_on_the_batch_size():
    one, four = _record("llama").work["model.layers.0"], _record("llama", 4).work["model.layers.0"]
    assert four.forward_flops == one.forward_flops
    assert four.activation_bytes == one.activation_bytes
    assert four.forward_moved_bytes == pytest.approx(one.forward_moved_bytes, rel=0.05)


def test_moved_bytes_of_an_addition_and_a_norm():
    from torch import nn

    from planner.runtime.program import RunnableModel
    from profiles.tracing import trace

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return x + self.linear(x)

    runnable = RunnableModel(
        name="residual",
        model=nn.Sequential(Block(), Block()),
        make_batch=lambda size, seed: ((torch.ones(size, 8),), torch.zeros(size, 8)),
        loss=lambda output, target: (output - target).square().mean(),
    )
    made = record(trace(runnable, 1), dtype="float32")
    assert made.work["0"].forward_moved_bytes == 3 * 8 * 4  # two summands read, the sum written
    assert made.work["0"].weight_bytes == (64 + 8) * 4
    assert made.work["0"].gradient_workspace_bytes == 64 * 4


def test_what_a_llama_block_holds_for_its_weights():
    """Gradients of the outputs of seven products and two norms; that of a residual sum is the one of its summands."""
    outputs = HIDDEN + 2 * KEY_VALUE + HIDDEN + 2 * INNER + HIDDEN
    norms = 2 * HIDDEN
    work = _record("llama").work
    assert work["model.layers.1"].weight_pass_bytes == 4 * TOKENS * (outputs + norms)
    assert work["model.embed_tokens"].weight_pass_bytes is None


def test_meta_traces_give_the_same_record():
    real, meta = _record("llama"), _record("llama", device="meta")
    assert meta.work == real.work
    assert meta.graph == real.graph


def test_recording_leaves_the_program_alone():
    program = TraceLoader(source=CONFIGS["gpt2"], sequence_length=SEQUENCE_LENGTH)(1)
    inputs, _ = program.runnable.make_batch(1, 0)
    before = program.module(*inputs)
    record(program)
    assert torch.equal(program.module(*inputs), before)
    assert all(p.grad is None for p in program.module.parameters())


def test_a_record_round_trips():
    made = _record("gpt2")
    assert codec.loads(ModelRecord, codec.dumps(made)) == made


def test_llama_70b_shapes_need_no_memory():
    config = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}
    config |= {"max_position_embeddings": 4096}
    loader = TraceLoader(source=config, sequence_length=4096, device="meta", dtype="bfloat16")
    work = record(loader(1)).work["model.layers.1"]
    assert work.weight_bytes == 2 * 855_654_400
    assert work.activation_bytes == pytest.approx(1.78e9, rel=0.1)  # counted by module hooks with repeated keys
