# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""FLOPs of records against 2 x parameters x tokens, worked out from the model and not from its operators.

The parameters are those that a token is multiplied with: all but the tables that are looked up (token and position
embeddings), the output head once also where it is a tied table, and of routed experts the chosen share. To that comes
attention: two products over the lower half of the scores, of the size of queries and of values.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from profiles.measuring.record import record
from profiles.tracing import TraceLoader

TOKENS = 128
TOLERANCE = 0.03
_BLOCKS = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
_TEXT = {"vocab_size": 1024, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_BASE = _BLOCKS | _TEXT
_GROUPED = _BASE | {"num_key_value_heads": 2}

DENSE = {
    "gpt2": _TEXT | {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": _BASE | {"model_type": "gpt_neox"},
    "opt": _BASE | {"model_type": "opt", "ffn_dim": 512, "word_embed_proj_dim": 128},
    "phi": _BASE | {"model_type": "phi"},
    "llama": _GROUPED | {"model_type": "llama"},
    "llama, tied": _GROUPED | {"model_type": "llama", "tie_word_embeddings": True},
    "mistral": _GROUPED | {"model_type": "mistral"},
    "qwen2": _GROUPED | {"model_type": "qwen2"},
    "qwen3": _GROUPED | {"model_type": "qwen3", "head_dim": 32},
    "olmo2": _GROUPED | {"model_type": "olmo2"},
    "starcoder2": _GROUPED | {"model_type": "starcoder2"},
}
LATENT = {
    "q_lora_rank": 64, "kv_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip
ROUTED = {
    "mixtral": _GROUPED | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": _GROUPED
    | {"model_type": "qwen3_moe", "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 128},
    "deepseek_v3": _BASE
    | LATENT
    | {"model_type": "deepseek_v3", "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2}
    | {"n_group": 1, "topk_group": 1, "moe_intermediate_size": 128, "first_k_dense_replace": 1},
}
CHOSEN = 2


def _traced(config, dtype="bfloat16"):
    program = TraceLoader(source=config, sequence_length=TOKENS, dtype=dtype, device="meta")(1)
    return program, record(program, dtype=dtype, sequence_length=TOKENS)


def _multiplied_parameters(model):
    """Those that are no looked-up table; a table that is the head too stays."""
    tables = {id(m.weight): m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    heads = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    looked_up = sum(table.numel() for key, table in tables.items() if key not in heads)
    return sum(p.numel() for p in model.parameters()) - looked_up


def _score_flops(config, products):
    """Causal attention of all blocks; `products` over the size of (queries, values)."""
    heads = config.get("num_attention_heads", config.get("n_head"))
    width = config.get("hidden_size", config.get("n_embd")) // heads
    query = config["qk_nope_head_dim"] + config["qk_rope_head_dim"] if "qk_nope_head_dim" in config else width
    sizes = products[0] * query + products[1] * config.get("v_head_dim", width)
    return config.get("num_hidden_layers", config.get("n_layer")) * TOKENS**2 * heads * sizes


@pytest.mark.parametrize("name", DENSE)
def test_dense_decoders(name):
    program, made = _traced(DENSE[name])
    parameters = _multiplied_parameters(program.runnable.model)
    forward = sum(work.forward_flops for work in made.work.values())
    backward = sum(work.backward_flops for work in made.work.values())
    assert forward == pytest.approx(2 * parameters * TOKENS + _score_flops(DENSE[name], (1, 1)), rel=TOLERANCE)
    assert backward == pytest.approx(4 * parameters * TOKENS + _score_flops(DENSE[name], (3, 2)), rel=TOLERANCE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ROUTED)
def test_mixtures_count_the_chosen_experts(name, dtype):
    """In both dtypes: bfloat16 is traced as torch's grouped product, float32 as transformers' stand-in."""
    program, made = _traced(ROUTED[name], dtype)
    itemsize = {"bfloat16": 2, "float32": 4}[dtype]
    layers = [layer for layer in program.graph.layers if layer.num_experts]
    experts = sum(layer.expert_parameter_bytes for layer in layers) // itemsize
    assert {layer.expert_visits for layer in layers} == {TOKENS * CHOSEN / layers[0].num_experts}
    dense = _multiplied_parameters(program.runnable.model) - experts
    active = dense + experts * CHOSEN / layers[0].num_experts
    forward = sum(work.forward_flops for work in made.work.values())
    backward = sum(work.backward_flops for work in made.work.values())
    assert forward == pytest.approx(2 * active * TOKENS + _score_flops(ROUTED[name], (1, 1)), rel=TOLERANCE)
    assert backward == pytest.approx(4 * active * TOKENS + _score_flops(ROUTED[name], (3, 2)), rel=TOLERANCE)


def test_values_of_another_size_keep_no_score_matrix():
    """DeepSeek's heads: without a fused kernel, kept bytes would grow with the square of the tokens."""
    config = ROUTED["deepseek_v3"]

    def kept(length):
        program = TraceLoader(source=config, sequence_length=length, dtype="bfloat16", device="meta")(1)
        return record(program).work["model.layers.0"].activation_bytes

    assert kept(256) == 2 * kept(128)


def test_values_of_another_size_by_hand():
    """One attention alone: 2 heads of 4, values of 6, 8 tokens, the whole square."""
    from torch.nn.functional import scaled_dot_product_attention

    from planner.runtime.program import RunnableModel
    from profiles.tracing import trace

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.queries = torch.nn.Linear(8, 8, bias=False)
            self.values = torch.nn.Linear(8, 12, bias=False)

        def forward(self, x):
            query = self.queries(x).view(1, 8, 2, 4).transpose(1, 2)
            value = self.values(x).view(1, 8, 2, 6).transpose(1, 2)
            return scaled_dot_product_attention(query, query, value).transpose(1, 2).reshape(1, 8, 12)

    runnable = RunnableModel(
        name="attention",
        model=Attention(),
        make_batch=lambda size, seed: ((torch.ones(size, 8, 8),), torch.zeros(size, 8, 12)),
        loss=torch.nn.functional.mse_loss,
    )
    made = record(trace(runnable, 1), dtype="float32").work
    products = 2 * 8 * 8 * (8 + 12)
    assert sum(work.forward_flops for work in made.values()) == products + 2 * 2 * 8 * 8 * (4 + 6)
    weight_gradients = products
    assert sum(work.backward_flops for work in made.values()) == weight_gradients + 2 * 2 * 8 * 8 * (3 * 4 + 2 * 6)
