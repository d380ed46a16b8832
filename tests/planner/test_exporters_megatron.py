"""Exported layouts against Megatron core, where it is installed: grammar, rules, what it builds on every rank."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from engine_builds import (
    MODELS,
    count,
    engine,
    exported,
    own_warnings,
    parameters_of,
    problem_of,
    random_plan,
    rank_of_fake_group,
)

from planner.exporters._megatron_layout import layout_faults, read_layout, write_layout


def megatron_layout() -> Any:
    return engine("megatron.core.transformer.pipeline_parallel_layer_layout").PipelineParallelLayerLayout


LETTERS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}


def test_megatron_reads_the_grammar_as_we_do() -> None:
    theirs, rng = megatron_layout(), random.Random(0)
    texts = ["Et*3|(tt|)*29,m|L", "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", "Et|(tt|)*29L"]
    for _ in range(300):
        pieces = [
            rng.choice(["t", "t*3", "|", "tt|", "(tt|)*2", "(t*2|t|)*3", "|*2", "m", ","])
            for _ in range(rng.randint(1, 8))
        ]
        texts.append("E" + "".join(pieces) + "L")
    for text in texts:
        chunks = ["".join(letter for layer in chunk for letter, name in LETTERS.items() if name == layer.name)
                  for chunk in theirs.parse_str_to_list(text)]  # fmt: skip
        assert read_layout(text) == tuple(chunks), text
        assert theirs.parse_str_to_list(write_layout(chunks)) == theirs.parse_str_to_list(text)


def test_megatron_accepts_what_we_call_legal() -> None:
    """Over random layouts of small pipelines: Megatron's own validation agrees with ours."""
    theirs, rng, legal = megatron_layout(), random.Random(1), 0
    for _ in range(400):
        size, virtual = rng.randint(1, 3), rng.randint(1, 2)
        chunks = ["t" * rng.randint(0, 2) for _ in range(size * virtual)]
        chunks[0] = "E" + chunks[0]
        chunks[rng.choice([-1, -1, rng.randrange(len(chunks))])] += rng.choice(["", "m", "mm"])
        chunks[-1] += rng.choice(["L", "L", "L", "tL", ""])
        layers, mtp = "".join(chunks).count("t"), "".join(chunks).count("m")
        faults = layout_faults(chunks, pipeline_size=size, virtual=virtual, num_layers=layers, mtp=mtp)
        try:
            theirs(write_layout(chunks), size).validate_layer_layout(layers, mtp)
        except AssertionError:
            assert faults, chunks
            continue
        legal += 1
        assert faults == [], chunks
    assert legal > 50


@pytest.mark.parametrize("seed", MODELS)
def test_megatron_builds_every_rank_as_planned(seed: int) -> None:
    engine("megatron.core")
    rng = random.Random(seed)
    blocks, hidden, words = rng.randint(6, 9), 4 * rng.randint(2, 6), 8 * rng.randint(2, 9)
    whole = megatron_stages(f"E{'t' * blocks}L", 1, 1, 0, (blocks, hidden, words))[0]
    sizes = {"embedding": count(whole.embedding)}
    sizes |= {f"block.{number}": count(layer) for number, layer in enumerate(whole.decoder.layers)}
    sizes["head"] = count(whole) - sum(sizes.values())
    ranks, virtual = rng.choice([(2, 1), (3, 1), (2, 2), (3, 2)])
    problem = problem_of(sizes, ranks)
    plan = random_plan("megatron", problem, rng, virtual=virtual)
    text = exported("megatron", problem, plan)
    layout = text.split("--pipeline-model-parallel-layout '")[1].split("'")[0]
    for rank in range(ranks):
        built = megatron_stages(layout, ranks, virtual, rank, (blocks, hidden, words))
        assert [count(stage) for stage in built] == parameters_of(plan, problem, rank)


def megatron_stages(layout: str, ranks: int, virtual: int, rank: int, shape: tuple[int, int, int]) -> list[Any]:
    """The model chunks that Megatron core makes on one rank."""
    with own_warnings():
        from megatron.core import parallel_state
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.transformer.transformer_config import TransformerConfig

        blocks, hidden, words = shape
        with rank_of_fake_group(rank, ranks):
            parallel_state.initialize_model_parallel(
                pipeline_model_parallel_size=ranks,
                virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
                create_gloo_process_groups=False,
            )
            try:
                config = TransformerConfig(
                    num_layers=blocks,
                    hidden_size=hidden,
                    num_attention_heads=2,
                    use_cpu_initialization=True,
                    pipeline_model_parallel_size=ranks,
                    virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
                    pipeline_model_parallel_layout=layout,
                    pipeline_dtype=torch.float32,
                )
                return [
                    GPTModel(
                        config,
                        get_gpt_layer_local_spec(),
                        words,
                        16,
                        pre_process=rank == 0 and chunk == 0,
                        post_process=rank == ranks - 1 and chunk == virtual - 1,
                        share_embeddings_and_output_weights=False,
                        position_embedding_type="none",
                        vp_stage=chunk if virtual > 1 else None,
                    )
                    for chunk in range(virtual)
                ]
            finally:
                parallel_state.destroy_model_parallel()
