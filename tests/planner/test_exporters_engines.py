"""Exports against the engines themselves, where these are installed: their parsers, and what they build on every rank.

DeepSpeed, torchtitan and accelerate build or place a small model by the exported layout; parameters are counted and
compared with those of the plan's stages. The engines are no requirements of the project: tests of one that is missing
are skipped. vLLM brings a torch of its own: its list is read by what its documentation says.
"""

from __future__ import annotations

import json
import random
import sys
import tomllib
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
from builders import flat_cluster

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
from torch import nn

from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.workload import Inference

# DeepSpeed


@pytest.mark.parametrize("seed", MODELS)
def test_deepspeed_builds_every_rank_as_planned(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_warnings():
        deepspeed = engine("deepspeed")
        pipe, topology = engine("deepspeed.pipe"), engine("deepspeed.runtime.pipe.topology")
    rng = random.Random(seed)
    widths = [rng.randint(1, 9) for _ in range(rng.randint(5, 9))]
    sizes = {f"layer{number}": a * b + b for number, (a, b) in enumerate(pairwise([*widths, 3]))}
    replicas = rng.choice([1, 2])
    problem = problem_of(sizes, replicas * rng.randint(2, 4))
    plan = random_plan("deepspeed", problem, rng, replicas=replicas)
    document = json.loads(exported("deepspeed", problem, plan))

    class Planned(pipe.PipelineModule):  # type: ignore[misc, name-defined]
        def _partition_layers(self, method: str) -> None:
            stage = self._topo.get_coord(self.global_rank).pipe
            self.parts = document["pipeline"]["parts"]
            self._set_bounds(self.parts[stage], self.parts[stage + 1])

    assert document["pipeline"]["layers"] == list(sizes)
    processes = len(problem.cluster.devices)
    for rank in range(processes):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with rank_of_fake_group(rank, processes), own_warnings():
            monkeypatch.setattr(deepspeed.comm.comm, "cdb", None)
            deepspeed.init_distributed("fake", dist_init_required=False)
            grid = topology.PipeModelDataParallelTopology(**document["topology"])
            layers = [pipe.LayerSpec(nn.Linear, a, b) for a, b in pairwise([*widths, 3])]
            built = Planned(layers, topology=grid, loss_fn=nn.MSELoss())
        assert [count(built)] == parameters_of(plan, problem, rank // replicas)
    batch = document["config"]
    assert batch["train_batch_size"] == (
        batch["train_micro_batch_size_per_gpu"] * batch["gradient_accumulation_steps"] * replicas
    )


# torchtitan


class Decoder(nn.Module):
    """A model with the module names of torchtitan's decoders."""

    def __init__(self, blocks: int, hidden: int, words: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(words, hidden)
        self.layers = nn.ModuleDict({str(n): nn.Linear(hidden, hidden, bias=n % 2 == 0) for n in range(blocks)})
        self.norm = nn.LayerNorm(hidden)
        self.lm_head = nn.Linear(hidden, words)


@pytest.mark.parametrize("seed", MODELS)
def test_torchtitan_splits_every_rank_as_planned(seed: int) -> None:
    with own_warnings():
        config, split = engine("torchtitan.config"), engine("torchtitan.distributed.pipeline_parallel")
    rng = random.Random(seed)
    model = Decoder(rng.randint(6, 9), rng.randint(2, 9), rng.randint(2, 9))
    sizes = {"tok_embeddings": count(model.tok_embeddings)}
    sizes |= {f"layers.{name}": count(layer) for name, layer in model.layers.items()}
    sizes["lm_head"] = count(model.norm) + count(model.lm_head)
    ranks, virtual = rng.choice([(2, 1), (3, 1), (2, 2), (3, 2)])
    problem = problem_of(sizes, ranks)
    plan = random_plan("torchtitan", problem, rng, virtual=virtual)
    values = tomllib.loads(exported("torchtitan", problem, plan))
    parallel = config.ParallelismConfig(**values["parallelism"])
    assert set(values["training"]) <= set(config.TrainingConfig.__dataclass_fields__)
    for rank in range(ranks):
        with rank_of_fake_group(rank, ranks), own_warnings():
            mesh = torch.distributed.init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
            _, parts = split._pipeline_module_split(
                model,
                mesh,
                parallel.pipeline_parallel_schedule,
                torch.device("cpu"),
                parallel.module_fqns_per_model_part,
            )
        assert [count(part) for part in parts] == parameters_of(plan, problem, rank)


def test_torchtitans_own_split_is_read_as_it_makes_it() -> None:
    from profiles.layouts.torchtitan import even_counts

    split = engine("torchtitan.distributed.pipeline_parallel")
    for stages, layers, first, last in [(4, 8, 1, 1), (2, 5, 1, 1), (8, 32, 2, 1), (6, 17, 0, 2), (1, 3, 1, 1)]:
        theirs = split._generate_llm_fqn_per_model_part(stages, layers, first, last)
        counts = [sum(name.startswith("layers.") for name in part) for part in theirs]
        assert even_counts(stages, layers, first, last) == counts


# Hugging Face accelerate


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral", "bert", "vit", "resnet", "t5"])
def test_accelerate_places_every_parameter_as_planned(family: str) -> None:
    engine("transformers")
    utils = engine("accelerate.utils")
    sys.path.insert(0, str(Path(__file__).parents[1] / "profiles"))
    from tiny_models import CONFIGS

    from profiles.recipes import loader_of, model_source

    with own_warnings():
        program = loader_of(model_source("config.json", text=json.dumps(CONFIGS[family])))(1)
    model, costs = program.runnable.model, LayerCost(forward_s=1.0)
    table = CostTable(microbatch_size=1, layers={layer.id: costs for layer in program.graph.layers})
    problem = Problem(
        graph=program.graph,
        profiles=(Profile(device_type="device", tables=(table,)),),
        cluster=flat_cluster(3),
        workload=Inference(global_batch_size=4),
    )
    shared = {name for tied in program.graph.tied for name in tied.layers}
    for seed in range(3):
        plan = random_plan("device_map", problem, random.Random(seed))
        placed = json.loads(exported("device_map", problem, plan))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # accelerate only warns of names that are no modules
            utils.check_device_map(model, placed)
        for number, stage in enumerate(plan.stages):
            if shared.isdisjoint(stage.layers):
                assert parameters_at(model, placed, number) == parameters_of(plan, problem, number)[0] // 4


def parameters_at(model: nn.Module, placed: dict[str, int], device: int) -> int:
    """Parameters on a device: the longest module name that a parameter is in counts."""
    total = 0
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        home = next(".".join(parts[:end]) for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in placed)
        total += parameter.numel() * (placed[home] == device)
    return total


# vLLM, by its documentation: the package brings its own torch


def vllm_indices(partition: str, num_layers: int, rank: int, size: int) -> tuple[int, int]:
    """First layer and the one after the last, as documented: one number per rank, which sum to all layers."""
    counts = [int(each) for each in partition.split(",")]
    assert len(counts) == size
    assert sum(counts) == num_layers
    return sum(counts[:rank]), sum(counts[: rank + 1])


@pytest.mark.parametrize("seed", MODELS)
def test_vllm_gives_every_rank_its_blocks(seed: int) -> None:
    rng = random.Random(seed)
    blocks = rng.randint(6, 9)
    sizes = {"embed": 5, **{f"layers.{number}": 7 + number for number in range(blocks)}, "head": 3}
    problem = problem_of(sizes, rng.randint(2, 4), inference=True)
    plan = random_plan("vllm", problem, rng)
    text = exported("vllm", problem, plan)
    partition = text.split('VLLM_PP_LAYER_PARTITION="')[1].split('"')[0]
    for rank, stage in enumerate(plan.stages):
        start, end = vllm_indices(partition, blocks, rank, len(plan.stages))
        mine = [name for name in stage.layers if name.startswith("layers.")]
        assert mine == [f"layers.{number}" for number in range(start, end)]
