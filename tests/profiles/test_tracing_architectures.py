# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Architectures of transformers, small: a DAG with the model's bytes at every grain that works; large: shapes only."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import architectures, tables
from benchmarks.small_models import LARGE, MODELS, Entry
from planner.errors import InputError
from planner.runtime.program import LOSS_LAYER
from profiles.measuring.record import record
from profiles.model import Grain
from profiles.tracing import TraceLoader

QUICK = (
    "mistral", "deepseek_v3", "dbrx", "mamba2", "modernbert", "longformer", "m2m_100", "segformer", "wavlm", "whisper",
    "clip", "llava", "git",
)  # fmt: skip
UNTRACED = {"idefics3", "qwen2_vl", "mllama"}
"""Their images come with lists of sizes, which no batch of ours has."""
KINDS = {
    "decoder", "mixture of experts", "state space", "encoder", "encoder-decoder", "vision", "speech", "multimodal",
}  # fmt: skip
FEWEST = 40
SECONDS, MEBIBYTES = 60, 6 * 1024
ROWS = json.loads((tables.RESULTS / "architectures.json").read_text())


def _check(name: str) -> None:
    row = architectures.small_row(name, MODELS[name])
    assert row["equal_bytes"] is True
    assert row["layers"] > MODELS[name].config.get("num_hidden_layers", 2)
    assert row["edges"] >= row["layers"] - 1


@pytest.mark.parametrize("name", QUICK)
def test_an_architecture_is_a_dag_with_the_models_bytes(name):
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODELS) - set(QUICK) - UNTRACED))
def test_every_architecture_is_a_dag_with_the_models_bytes(name):
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(UNTRACED))
def test_what_cannot_be_fed_says_so(name):
    with pytest.raises(InputError, match=r"no batch can be made .* write a module:factory"):
        TraceLoader(source=MODELS[name].config, sequence_length=MODELS[name].length)(2)


def test_the_table_has_forty_architectures_of_every_kind():
    good = [row for row in ROWS if row["equal_bytes"] and row["architecture"] in MODELS]
    assert len(good) >= FEWEST
    assert {row["kind"] for row in good} == KINDS
    assert {row["architecture"] for row in ROWS} == {*MODELS, *LARGE}


def test_the_table_has_the_large_models_within_time_and_memory():
    large = [row for row in ROWS if row["architecture"] in LARGE]
    assert [row["parameters"] for row in large] == [405_853_388_800, 671_026_404_352]
    assert all(row["cpu_s"] < SECONDS and row["rss_mib"] < MEBIBYTES for row in large)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_model_with_few_layers_is_recorded_from_shapes(name):
    config = LARGE[name].config | {"num_hidden_layers": 5}  # DeepSeek-V3 begins with three dense layers
    row = architectures.large_row(name, Entry(kind="published size", config=config, length=64))
    assert row["layers"] == 5 + 3  # embedding, head and loss
    assert row["equal_bytes"] is True


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_model_is_recorded_within_memory(name):
    (row,) = architectures.rows([name])
    assert row["equal_bytes"] is True
    assert row["cpu_s"] < SECONDS
    assert row["rss_mib"] < MEBIBYTES


def test_stages_of_whole_modules_compute_what_the_model_computes():
    entry = MODELS["dbrx"]
    program = TraceLoader(source=entry.config, sequence_length=entry.length)(2)
    inputs, target = program.runnable.make_batch(2, 3)
    torch.testing.assert_close(program.module(*inputs), program.runnable.model(*inputs), rtol=0, atol=1e-6)
    program.runnable.loss(program.module(*inputs), target).backward()
    made = {name: p.grad.clone() for name, p in program.runnable.model.named_parameters() if p.grad is not None}
    program.runnable.model.zero_grad()
    program.runnable.loss(program.runnable.model(*inputs), target).backward()
    for name, parameter in program.runnable.model.named_parameters():
        torch.testing.assert_close(made[name], parameter.grad, rtol=0, atol=1e-6)


def test_whole_modules_cannot_be_recorded_nor_traced_from_shapes():
    entry = MODELS["dbrx"]
    with pytest.raises(InputError, match=r"'transformer.blocks.0.ffn.experts' is traced as a whole.*measure"):
        record(TraceLoader(source=entry.config, sequence_length=entry.length)(1), dtype="float32")
    with pytest.raises(InputError, match=r"shapes alone cannot: measure the model"):
        TraceLoader(source=entry.config, sequence_length=entry.length, device="meta")(1)


def test_no_gradient_enters_a_region_without_gradients():
    """m2m_100 computes its positions without gradients; their values are the model's, and no edge trains them."""
    entry = MODELS["m2m_100"]
    program = TraceLoader(source=entry.config, sequence_length=entry.length)(2)
    inputs, _ = program.runnable.make_batch(2, 0)
    assert torch.equal(program.module(*inputs), program.runnable.model(*inputs))
    assert all(node.op != "get_attr" or hasattr(node.meta["val"], "shape") for node in program.module.graph.nodes)


def test_unread_parameters_stay_where_the_model_holds_them():
    """LLaVA reads the last but one layer of its image encoder: the last one is held by the stage of that layer."""
    entry = MODELS["llava"]
    program = TraceLoader(source=entry.config, sequence_length=entry.length)(2)
    layers = {layer.id: layer for layer in program.graph.layers}
    tower = program.runnable.model.model.vision_tower
    held = sum(p.numel() * p.element_size() for p in tower.encoder.parameters())
    assert layers["model.vision_tower.encoder.layers.0"].parameter_bytes >= held


@pytest.mark.parametrize("grain", Grain)
def test_elements_of_split_weights_are_no_edges(grain):
    """SigLIP's pooling splits a weight in two: lists never leave a layer."""
    entry = MODELS["siglip"]
    graph = TraceLoader(source=entry.config, sequence_length=entry.length, grain=grain)(2).graph
    assert graph.layers[-1].id == LOSS_LAYER
