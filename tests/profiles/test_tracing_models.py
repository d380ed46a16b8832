# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Every family of models traces to a DAG whose sizes are exact and whose stages compute what the model computes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import BATCH_SIZE, CONFIGS, SEQUENCE_LENGTH

from planner.checks import check_graph
from planner.graph import GraphIndex
from planner.runtime.program import LOSS_LAYER, TracedProgram
from planner.runtime.split import model_input_names, output_name, split_layers
from profiles.model import Grain
from profiles.tracing import TraceLoader

CASES = [(name, grain) for name in CONFIGS for grain in Grain]


@pytest.fixture(scope="module")
def traced():
    programs: dict[tuple[str, Grain, int], TracedProgram] = {}

    def get(name: str, grain: Grain = Grain.BLOCK, batch_size: int = BATCH_SIZE) -> TracedProgram:
        key = (name, grain, batch_size)
        if key not in programs:
            loader = TraceLoader(source=CONFIGS[name], sequence_length=SEQUENCE_LENGTH, grain=grain)
            programs[key] = loader(batch_size)
        return programs[key]

    return get


@pytest.mark.parametrize(("name", "grain"), CASES)
def test_the_graph_is_a_dag_in_the_order_of_the_trace(traced, name, grain):
    graph = traced(name, grain).graph
    check_graph(graph)
    assert GraphIndex(graph).layers == graph.layers


@pytest.mark.parametrize(("name", "grain"), CASES)
def test_parameter_bytes_are_the_models(traced, name, grain):
    program = traced(name, grain)
    counted = sum(layer.parameter_bytes for layer in program.graph.layers)
    shared = sum(tied.parameter_bytes * (len(tied.layers) - 1) for tied in program.graph.tied)
    used = {id(p): p for p in program.module.parameters()}
    assert counted - shared == sum(p.numel() * p.element_size() for p in used.values())
    assert len(used) == len(list(program.runnable.model.parameters()))


@pytest.mark.parametrize(("name", "grain"), CASES)
def test_stages_compute_what_the_model_computes(traced, name, grain):
    program = traced(name, grain)
    inputs, _ = program.runnable.make_batch(BATCH_SIZE, 1)
    layers = [layer.id for layer in program.graph.layers if layer.id != LOSS_LAYER]
    values = dict(zip(model_input_names(program), inputs, strict=True))
    for stage in split_layers(program, [[layer] for layer in layers]):
        values |= zip(stage.output_names, stage(*(values[n] for n in stage.input_names)), strict=True)
    expected = program.runnable.model(*inputs)
    assert torch.equal(values[output_name(program)], expected)
    assert torch.equal(program.module(*inputs), expected)


@pytest.mark.parametrize(("name", "grain"), CASES)
def test_edges_are_the_tensors_that_stages_exchange(traced, name, grain):
    program = traced(name, grain)
    inputs, _ = program.runnable.make_batch(BATCH_SIZE, 1)
    layers = [layer.id for layer in program.graph.layers if layer.id != LOSS_LAYER]
    values = dict(zip(model_input_names(program), inputs, strict=True))
    edges = {(e.source, e.target, e.tensor): e for e in program.graph.edges}
    found = set()
    for layer, stage in zip(layers, split_layers(program, [[layer] for layer in layers]), strict=True):
        values |= zip(stage.output_names, stage(*(values[n] for n in stage.input_names)), strict=True)
        for tensor in set(stage.input_names) - set(stage.model_inputs):
            key = (program.layer_of_node[tensor], layer, tensor)
            found.add(key)
            value = values[tensor]
            assert edges[key].bytes_per_sample == -(-value.numel() * value.element_size() // BATCH_SIZE)
            assert edges[key].has_gradient == value.requires_grad
    assert found == {key for key in edges if key[1] != LOSS_LAYER}


@pytest.mark.parametrize("name", CONFIGS)
def test_ids_depend_neither_on_the_batch_size_nor_on_the_run(traced, name):
    first, other = traced(name), traced(name, batch_size=3)
    again = TraceLoader(source=CONFIGS[name], sequence_length=SEQUENCE_LENGTH)(BATCH_SIZE)
    assert again.graph == first.graph
    assert again.layer_of_node == first.layer_of_node
    assert [layer.id for layer in other.graph.layers] == [layer.id for layer in first.graph.layers]
    assert other.graph.layers == first.graph.layers


def test_gpt2_is_embedding_blocks_head_and_loss(traced):
    graph = traced("gpt2").graph
    blocks = [f"transformer.h.{i}" for i in range(3)]
    assert [layer.id for layer in graph.layers] == ["transformer.wte", *blocks, "lm_head", LOSS_LAYER]
    assert [layer.op for layer in graph.layers[1:4]] == ["GPT2Block"] * 3
    assert GraphIndex(graph).is_chain()
    assert graph.colocated == (("lm_head", LOSS_LAYER),)
    assert {e.bytes_per_sample for e in graph.edges if e.target != LOSS_LAYER} == {SEQUENCE_LENGTH * 32 * 4}


def test_gpt2_ties_embedding_and_head(traced):
    (tied,) = traced("gpt2").graph.tied
    assert tied.layers == ("transformer.wte", "lm_head")
    assert tied.parameter_bytes == 64 * 32 * 4


def test_t5_ties_three_layers_and_keeps_the_encoder_alive(traced):
    graph = traced("t5").graph
    assert [tied.layers for tied in graph.tied] == [("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")]
    readers = {e.target for e in graph.edges if e.source == "decoder.embed_tokens"}
    assert {"decoder.block.0", "decoder.block.1"} <= readers  # cross attention reads the encoder's output in each


def test_shared_blocks_are_layers_of_their_own(traced):
    graph = traced("albert").graph
    block = "albert.encoder.albert_layer_groups.0"
    assert [layer.id for layer in graph.layers if layer.id.startswith(block)] == [block, f"{block}#2"]
    assert (block, f"{block}#2") in [tied.layers for tied in graph.tied]


def test_resnet_blocks_are_its_bottlenecks(traced):
    layers = traced("resnet").graph.layers
    assert [layer.op for layer in layers].count("ResNetBottleNeckLayer") == 5


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "mixtral"])
def test_a_block_reduces_twice_over_a_tensor_parallel_group(traced, name):
    program = traced(name)
    index = GraphIndex(program.graph)
    for number, layer in enumerate(index.layers):
        if layer.op.endswith(("Block", "Layer")):
            (output,) = index.outputs[number]
            assert layer.tensor_collective_bytes_per_sample == 2 * index.tensors[output].bytes_per_sample


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_a_decoders_embedding_reduces_once_and_its_head_never(traced, name):
    layers = traced(name).graph.layers
    assert layers[0].tensor_collective_bytes_per_sample == SEQUENCE_LENGTH * 32 * 4
    assert layers[-2].tensor_collective_bytes_per_sample == 0


def test_replicated_parameters_are_norms_and_biases(traced):
    program = traced("llama")
    assert program.graph.layers[1].replicated_parameter_bytes == 2 * 32 * 4  # the two norms of a block


def test_masks_and_positions_are_in_no_layer(traced):
    program = traced("llama")
    free = [n for n in program.module.graph.nodes if n.op == "call_function" and n.name not in program.layer_of_node]
    assert any("cos" in str(node.target) for node in free)
    assert all(node.meta["val"].shape[0] != BATCH_SIZE for node in free)


def test_frozen_layers_are_not_trainable_and_send_no_gradient():
    loader = TraceLoader(source=CONFIGS["gpt2"], sequence_length=SEQUENCE_LENGTH)
    runnable = loader.runnable()
    runnable.model.transformer.requires_grad_(False)
    from profiles.tracing import trace

    graph = trace(runnable, BATCH_SIZE).graph
    assert [layer.trainable for layer in graph.layers[:-1]] == [False] * 5  # the head is tied to the embedding
    assert not any(e.has_gradient for e in graph.edges if e.target != LOSS_LAYER)
