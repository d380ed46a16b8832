# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Sources of runnable models: transformers configurations and factories, and what they say about bad input."""

from __future__ import annotations

import json
import pickle
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CONFIGS, SEQUENCE_LENGTH

from planner.errors import InputError
from planner.runtime.program import LOSS_LAYER, RunnableModel
from profiles.tracing import SourceKind, TraceLoader, from_factory, from_transformers_config, trace

FACTORIES = """
import torch
from torch import nn
from planner.runtime.program import RunnableModel

def batch(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, 4, generator=generator),), torch.zeros(size, 2)

def loss(output, target):
    return ((output - target) ** 2).mean()

def network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 2))

def triple():
    return network(), batch, loss

def whole():
    return RunnableModel(name="mlp", model=network(), make_batch=batch, loss=loss)

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(4, 2)])
    def forward(self, x):
        return self.inner[0](x) if x.sum() > 0 else x[:, :2]

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = Branching()
    def forward(self, x):
        return self.branch(x)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def forward(self, x):
        return self.linear(x), x

def branching():
    return Outer(), batch, loss

def branching_at_the_top():
    return Branching(), batch, loss

def pair():
    return Pair(), batch, loss

def no_model():
    return 3, batch, loss

def scalar_batch():
    return network(), lambda size, seed: ((torch.tensor(1.0),), torch.zeros(size)), loss

def wrong():
    return "model"

def failing():
    raise RuntimeError("no weights today")

constant = 7
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "pp_factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    yield "pp_factories"
    sys.modules.pop("pp_factories", None)


def test_a_file_its_folder_and_its_values_are_the_same_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt2"]))
    made = [from_transformers_config(source) for source in (tmp_path, tmp_path / "config.json", CONFIGS["gpt2"])]
    inputs, _ = made[0].make_batch(2, 0)
    first, *others = [one.model.eval()(*inputs) for one in made]
    assert all(torch.equal(first, other) for other in others)


def test_the_seed_decides_weights_and_data():
    one, same = (from_transformers_config(CONFIGS["gpt2"], seed=1) for _ in range(2))
    other = from_transformers_config(CONFIGS["gpt2"], seed=2)
    name = "transformer.h.0.attn.c_attn.weight"
    assert torch.equal(one.model.get_parameter(name), same.model.get_parameter(name))
    assert not torch.equal(one.model.get_parameter(name), other.model.get_parameter(name))
    assert torch.equal(one.make_batch(2, 5)[1], same.make_batch(2, 5)[1])
    assert not torch.equal(one.make_batch(2, 5)[1], one.make_batch(2, 6)[1])


def test_making_a_model_leaves_the_random_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    from_transformers_config(CONFIGS["bert"])
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "albert"])
def test_fused_attention_gives_what_eager_attention_gives(name):
    fused, eager = (from_transformers_config(CONFIGS[name], sequence_length=SEQUENCE_LENGTH) for _ in range(2))
    eager.model.config._attn_implementation = "eager"
    inputs, _ = fused.make_batch(2, 0)
    torch.testing.assert_close(fused.model.eval()(*inputs), eager.model.eval()(*inputs))


def test_a_window_shorter_than_the_sequence_keeps_its_mask():
    windowed = CONFIGS["llama"] | {"model_type": "mistral", "sliding_window": 4}
    runnable = from_transformers_config(windowed, sequence_length=SEQUENCE_LENGTH)
    inputs, _ = runnable.make_batch(1, 0)
    before = runnable.model.eval()(*inputs)
    changed = inputs[0].clone()
    changed[0, 0] = (changed[0, 0] + 1) % 64
    reach = 2 * (4 - 1)  # two layers
    after = runnable.model(changed)
    assert torch.equal(before[0, reach + 1 :], after[0, reach + 1 :])
    assert not torch.equal(before[0, 1], after[0, 1])


def test_meta_tensors_trace_to_the_same_graph():
    real, meta = (
        TraceLoader(source=CONFIGS["llama"], sequence_length=SEQUENCE_LENGTH, device=device)(2).graph
        for device in ("cpu", "meta")
    )
    assert meta == real


def test_bfloat16_halves_the_bytes():
    full, half = (TraceLoader(source=CONFIGS["gpt2"], dtype=dtype)(1).graph for dtype in ("float32", "bfloat16"))
    assert [2 * layer.parameter_bytes for layer in half.layers] == [layer.parameter_bytes for layer in full.layers]


def test_a_loader_survives_pickling_and_makes_equal_programs():
    loader = TraceLoader(source=CONFIGS["gpt2"], sequence_length=8, seed=4)
    first, second = loader(2), pickle.loads(pickle.dumps(loader))(2)
    assert first.graph == second.graph
    for (name, one), (_, two) in zip(first.module.named_parameters(), second.module.named_parameters(), strict=True):
        assert torch.equal(one, two), name


def test_a_traced_model_has_no_chance_in_it():
    program = TraceLoader(source=CONFIGS["gpt2"], sequence_length=8)(2)
    inputs, _ = program.runnable.make_batch(2, 0)
    assert torch.equal(program.module(*inputs), program.module(*inputs))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"hidden_size": 4}, "no 'model_type'"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({"model_type": "decision_transformer"}, "reads 'states', which cannot be drawn"),
        (CONFIGS["llama"] | {"num_key_value_heads": 0}, "'llama'"),
        (CONFIGS["gpt2"] | {"n_layer": -3}, "n_layer is -3 .* at least 1"),
        (CONFIGS["llama"] | {"num_hidden_layers": 0}, "num_hidden_layers is 0 .* at least 1"),
        (CONFIGS["t5"] | {"num_decoder_layers": 0}, "num_decoder_layers is 0 .* at least 1"),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": -1}}, r"text_config\.num_hidden_layers is -1"),
        ({"model_type": "deepseek_v3", "num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1 .* at least 0"),
        ("nowhere/config.json", "cannot be read"),
    ],
)
def test_what_is_no_configuration_is_refused(source, message):
    with pytest.raises(InputError, match=message):
        from_transformers_config(source)


@pytest.mark.parametrize("text", ["[1, 2]", "{", '{"model_type": 3}'])
def test_files_that_are_no_configuration_are_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError):
        from_transformers_config(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 33}, "32 positions"),
        ({"sequence_length": 0}, "at least 1"),
        ({"dtype": "int8"}, "float32, bfloat16"),
        ({"device": "moon"}, "'cpu' or 'meta'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        from_transformers_config(CONFIGS["gpt2"], **options)


def test_a_model_that_cannot_fit_is_refused_before_it_is_built():
    huge = {"model_type": "gpt2", "n_embd": 65536, "n_head": 64, "n_layer": 200}
    with pytest.raises(InputError, match="GiB"):
        from_transformers_config(huge)


@pytest.mark.parametrize("name", ["triple", "whole"])
def test_factories_give_runnable_models(factories, name):
    runnable = from_factory(f"{factories}:{name}")
    assert isinstance(runnable, RunnableModel)
    graph = trace(runnable, 2).graph
    assert [layer.id for layer in graph.layers] == ["0", "3", LOSS_LAYER]  # activation and dropout join the first


def test_factories_are_seeded(factories):
    loader = TraceLoader(source=f"{factories}:whole", kind=SourceKind.FACTORY, seed=9)
    one, two = loader(2), loader(2)
    assert torch.equal(one.module.get_parameter("0.weight"), two.module.get_parameter("0.weight"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("constant", "non-callable"),
        ("nothing", "has no 'nothing'"),
        ("no_model", "must be a torch nn.Module"),
        ("scalar_batch", "dimension 0"),
        ("wrong", "returned a str"),
        ("failing", "no weights today"),
    ],
)
def test_bad_factories_are_refused(factories, name, message):
    with pytest.raises(InputError, match=message):
        from_factory(f"{factories}:{name}")


@pytest.mark.parametrize("source", ["no_colon", ":x", "x:", "pp_no_such_module:make"])
def test_bad_factory_names_are_refused(source):
    with pytest.raises(InputError):
        from_factory(source)


def test_an_untraceable_module_is_named_with_its_line_and_the_next_grain(factories):
    message = r"module 'branch' fails at pp_factories.py:\d+ `.*x.sum\(\) > 0.*coarser grain 'module' or 'block'"
    with pytest.raises(InputError, match=message):
        trace(from_factory(f"{factories}:branching"), 2, "operator")


def test_a_forward_that_depends_on_the_data_is_refused_at_any_grain(factories):
    with pytest.raises(InputError, match=r"module '\(top\)' fails at .*x.sum\(\) > 0.*no grain helps"):
        trace(from_factory(f"{factories}:branching_at_the_top"), 2)


def test_a_model_with_two_outputs_is_refused(factories):
    with pytest.raises(InputError, match="returns 2 values"):
        trace(from_factory(f"{factories}:pair"), 2)


def test_a_batch_size_of_zero_is_refused(factories):
    with pytest.raises(InputError, match="at least 1"):
        trace(from_factory(f"{factories}:whole"), 0)
