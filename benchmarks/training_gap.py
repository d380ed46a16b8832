"""How far from the best are our plans for published training set-ups? `python -m benchmarks.training_gap [--json FILE]`

Ten set-ups of public papers and reports (tests/instances/cases/configs_handed.json and the papers it names): model
shape, number of GPUs, tensor degree and global batch as published; depth, cuts, replication, microbatches and schedule
are searched. Prices are analytic (profiles.analytic); the gap is that of the certificate on the simulated time.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner import Recomputation, SearchOptions, Training
from planner.service import plan
from profiles.clusters import parse_cluster
from profiles.measuring.record import record
from profiles.model import ModelRecord
from profiles.sources import build_problem
from profiles.tracing import TraceLoader

GPT_VOCABULARY = 51200


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """One published run: the transformers configuration, cluster, tensor degree, batch and recomputation."""

    name: str
    source: str
    config: dict[str, Any]
    sequence_length: int
    cluster: str
    tensor: int
    global_batch_size: int
    recomputation: Recomputation = Recomputation.FULL


def gpt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    """GPT-2's class at another size."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 2048,
        "vocab_size": GPT_VOCABULARY,
    }


def llama(hidden: int, layers: int, heads: int, feed_forward: int) -> dict[str, Any]:
    """Llama 3's class at its published sizes."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": feed_forward,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }


SC21 = "Narayanan et al., SC21, table 1"
RECOMPUTE = "Korthikanti et al. 2022, table 3"
BRIDGE = "Megatron-Bridge performance summary"
BLOOM = {
    "model_type": "bloom",
    "architectures": ["BloomForCausalLM"],
    "hidden_size": 14336,
    "n_layer": 72,
    "n_head": 64,
    "vocab_size": 250880,
}
SETUPS = tuple(
    SetUp(name=n, source=s, config=c, sequence_length=q, cluster=k, tensor=t, global_batch_size=g)
    for n, s, c, q, k, t, g in (
        ("gpt-1.7b", SC21, gpt(2304, 24, 24), 2048, "4x8xA100-80G-SXM", 1, 512),
        ("gpt-7.5b", SC21, gpt(4096, 36, 32), 2048, "16x8xA100-80G-SXM", 4, 512),
        ("gpt-39b", SC21, gpt(8192, 48, 64), 2048, "64x8xA100-80G-SXM", 8, 1536),
        ("gpt-145b", SC21, gpt(12288, 80, 96), 2048, "192x8xA100-80G-SXM", 8, 2304),
        ("gpt-530b", SC21, gpt(20480, 105, 128), 2048, "315x8xA100-80G-SXM", 8, 2520),
        ("gpt-22b", RECOMPUTE, gpt(6144, 48, 64), 2048, "8xA100-80G-SXM", 8, 4),
        ("gpt-175b", RECOMPUTE, gpt(12288, 96, 96), 2048, "8x8xA100-80G-SXM", 8, 64),
        ("bloom-181b", "BLOOM chronicles, BL00", BLOOM, 2048, "48x8xA100-80G-SXM", 8, 2048),
        ("llama-3-70b", BRIDGE, llama(8192, 80, 64, 28672), 8192, "8x8xH100-80G-SXM", 4, 256),
        ("llama-3.1-405b", BRIDGE, llama(16384, 126, 128, 53248), 8192, "128x8xH100-80G-SXM", 8, 1536),
    )
)


def main() -> None:
    """Plan every set-up and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", help="a comma-separated list of names")
    parser.add_argument("--limit-s", type=float, default=60.0)
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [s.name for s in SETUPS]
    rows = []
    for setup in (s for s in SETUPS if s.name in names):
        rows.append(row_of(setup, arguments.limit_s))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def row_of(setup: SetUp, limit_s: float) -> dict[str, Any]:
    """Record, price, plan; ZeRO stage 1 and bfloat16 with float32 gradients and master weights throughout."""
    model = record_of(setup)
    started = time.process_time()
    problem = build_problem(
        model,
        parse_cluster(setup.cluster),
        Training(
            global_batch_size=setup.global_batch_size,
            sequence_length=setup.sequence_length,
            weight_bytes_per_parameter=2.0,
            gradient_bytes_per_parameter=4.0,
            optimizer_bytes_per_parameter=12.0,
            recomputation=setup.recomputation,
            tensor=setup.tensor,
            zero=1,
        ),
    )
    result = plan(problem, SearchOptions(time_limit_s=limit_s))
    row: dict[str, Any] = {"name": setup.name, "source": setup.source, "status": result.report.status.value}
    if result.plan is None or result.estimate is None:
        row["why"] = result.report.infeasibility.message if result.report.infeasibility else ""
        return row
    proven = [c for c in result.report.certificates if c.quantity == "iteration_time_s"]
    simulated, alike = proven[0], proven[-1]
    return row | {
        "stages": len(result.plan.stages),
        "replicas": sorted({len(s.replicas) for s in result.plan.stages}),
        "microbatch_size": result.plan.microbatch_size,
        "num_microbatches": result.plan.num_microbatches,
        "iteration_time_s": round(result.estimate.iteration_time_s, 4),
        "bound_s": round(simulated.bound_s, 4),
        "gap": round(simulated.gap, 5),
        "proved_by": simulated.method,
        "schedule": result.plan.schedule,
        "gap_under_schedule": round(alike.gap, 5),
        "devices_idle": result.estimate.num_devices_idle,
        "cpu_s": round(time.process_time() - started, 2),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def record_of(setup: SetUp) -> ModelRecord:
    """The model's work, traced on meta tensors in bfloat16."""
    loader = TraceLoader(source=setup.config, sequence_length=setup.sequence_length, dtype="bfloat16", device="meta")
    return record(loader(1), name=setup.name, dtype="bfloat16", sequence_length=setup.sequence_length)


if __name__ == "__main__":
    main()
