"""Published measurements beside our estimates: `python -m benchmarks.truth.published [--json FILE]`.

18 runs of Megatron-LM on eight B200 (`simumax/ORIGIN.md`). The estimates are analytic: from the model's shape and the
data sheet, with the shares of the peaks that `profiles.analytic` assumes for all devices; nothing of that machine was
measured for them. Beside them stand estimates in which products reach the mean share of the peak that was measured on
that machine (`MEASURED_EFFICIENCY`), and that project's own simulator, which knows every matrix shape's share there.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from planner.cluster import Cluster
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.service import estimate
from planner.workload import Training
from profiles.analytic import MATMUL_EFFICIENCY
from profiles.clusters import parse_cluster
from profiles.model import ModelRecord, ModelSource
from profiles.recipes import record_of
from profiles.sources import build_problem
from profiles.transformer import TransformerShape, transformer_record

MEASURED = Path(__file__).resolve().parent / "simumax" / "measured.json"
DEFAULT_JSON = Path(__file__).resolve().parent.parent / "results" / "truth-published.json"
NUM_DEVICES = 8
SEQUENCE_LENGTH = 4096
MEASURED_EFFICIENCY = 0.488
"""Of matrix products: `efficient_factor` in that project's `system/b200_bf16_ceperm.json`."""
PARALLEL = re.compile(r"tp(?P<tensor>\d+)(?:ep(?P<expert>\d+))?pp(?P<stages>\d+)")
DENSE_LAYERS = 1
"""Of DeepSeek-V3 with 4 layers: its allocated bytes are those of three layers with experts."""
Row = dict[str, Any]


@cache
def record(model: str, num_layers: int) -> ModelRecord:
    """The model's work per layer."""
    if model == "llama3-70b":
        return transformer_record(model, _llama(num_layers))
    return record_of(
        ModelSource(
            kind="transformers",
            reference=model,
            config=_deepseek(num_layers),
            sequence_length=SEQUENCE_LENGTH,
            dtype="bfloat16",
        )
    )


def _llama(num_layers: int) -> TransformerShape:
    return TransformerShape(
        hidden=8192,
        feedforward=28672,
        sequence_length=SEQUENCE_LENGTH,
        heads=64,
        head_size=128,
        num_blocks=num_layers,
        vocabulary=128256,
        key_value_heads=8,
        gated=True,
        tied=False,
        fused_attention=True,
    )


def _deepseek(num_layers: int) -> Row:
    return {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": num_layers,
        "first_k_dense_replace": DENSE_LAYERS, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
        "max_position_embeddings": SEQUENCE_LENGTH, "tie_word_embeddings": False, "n_group": 8, "topk_group": 4,
    }  # fmt: skip


def problem_and_plan(row: Row, efficiency: float = MATMUL_EFFICIENCY) -> tuple[Problem, Plan]:
    """What the row's run was: equal stages, data parallelism over the rest of the devices, one sample per replica.

    `efficiency` is the share of the peak that products reach.
    """
    found = PARALLEL.fullmatch(row["parallel"])
    assert found is not None
    tensor, expert, num_stages = (int(found[name] or 1) for name in ("tensor", "expert", "stages"))
    replicas = NUM_DEVICES // (tensor * num_stages)
    model, cluster = record(row["model"], row["layer_num"]), _cluster(efficiency)
    work = Training(
        global_batch_size=replicas * row["mbc"],
        microbatch_size=replicas,
        num_microbatches=row["mbc"],
        sequence_length=SEQUENCE_LENGTH,
        weight_bytes_per_parameter=2.0,
        gradient_bytes_per_parameter=4.0,
        optimizer_bytes_per_parameter=12.0,
        tensor=tensor,
        expert=expert,
        zero=1,
    )
    devices = iter(device.id for device in cluster.devices)
    stages = tuple(
        Stage(
            layers=layers,
            replicas=tuple(tuple(next(devices) for _ in range(tensor)) for _ in range(replicas)),
            tensor=tensor,
            expert=expert,
            zero=1,
        )
        for layers in _halves([layer.id for layer in model.graph.layers], row["layer_num"], num_stages)
    )
    plan = Plan(stages=stages, schedule="1f1b", microbatch_size=replicas, num_microbatches=row["mbc"])
    return build_problem(model, cluster, work), plan


def _cluster(efficiency: float) -> Cluster:
    """Eight B200, their peaks scaled so that the pricing's own share of them is the wanted one of the data sheet's."""
    cluster = parse_cluster(f"{NUM_DEVICES}xB200")
    (kind,) = cluster.device_types
    scaled = {name: peak * efficiency / MATMUL_EFFICIENCY for name, peak in (kind.peak_flops_per_s or {}).items()}
    return replace(cluster, device_types=(replace(kind, peak_flops_per_s=scaled),))


def _halves(layers: list[str], num_blocks: int, num_stages: int) -> list[tuple[str, ...]]:
    """Equally many blocks each; what stands before the blocks with the first stage, what follows with the last."""
    each, first = num_blocks // num_stages, 1
    cuts = [0, *(first + each * number for number in range(1, num_stages)), len(layers)]
    return [tuple(layers[a:b]) for a, b in pairwise(cuts)]


def rows() -> Iterator[Row]:
    """One per published run."""
    for row in json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]:
        problem, plan = problem_and_plan(row)
        found = estimate(problem, plan)
        informed_ms = 1e3 * estimate(*problem_and_plan(row, MEASURED_EFFICIENCY)).iteration_time_s
        measured_bytes = max(row["max_allocated_mb"]) * 2**20
        yield {
            "case": row["case"].removesuffix("_cef"),
            "measured_ms": row["real_ms"],
            "estimated_ms": 1e3 * found.iteration_time_s,
            "error": 1e3 * found.iteration_time_s / row["real_ms"] - 1,
            "informed_error": informed_ms / row["real_ms"] - 1,
            "their_error": row["perf_ms"] / row["real_ms"] - 1,
            "measured_gib": measured_bytes / 2**30,
            "estimated_gib": found.peak_memory_bytes / 2**30,
            "memory_error": found.peak_memory_bytes / measured_bytes - 1,
            "their_memory_error": row["perf_alloc_gib"] / row["real_alloc_gib"] - 1,
        }


def main(arguments: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON)
    given = parser.parse_args(arguments)
    found = list(rows())
    given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    values = machine() | {"command": "python -m benchmarks.truth.published"}
    given.json.with_suffix(".machine.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    errors = ("error", "informed_error", "their_error", "memory_error", "their_memory_error")
    table = Table("case", "measured ms", "estimate", "informed", "theirs", "memory", "theirs")
    for row in found:
        table.add_row(row["case"], f"{row['measured_ms']:.0f}", *(f"{100 * row[name]:+.1f} %" for name in errors))
    Console().print(table)


if __name__ == "__main__":
    main()
