"""Worked examples of requests: shown on the OpenAPI page, and each of them works (a test posts them)."""

from __future__ import annotations

from typing import Any

GIBIBYTE = 2**30

INLINE_MODEL: dict[str, Any] = {
    "graph": {
        "name": "four-layers",
        "layers": [
            {"id": "embedding", "parameter_bytes": 400_000_000},
            {"id": "block.0", "parameter_bytes": 200_000_000},
            {"id": "block.1", "parameter_bytes": 200_000_000},
            {"id": "head", "parameter_bytes": 400_000_000},
        ],
        "edges": [
            {"source": "embedding", "target": "block.0", "bytes_per_sample": 4_000_000},
            {"source": "block.0", "target": "block.1", "bytes_per_sample": 4_000_000},
            {"source": "block.1", "target": "head", "bytes_per_sample": 4_000_000},
        ],
    },
    "profiles": [
        {
            "device_type": "A100-40G",
            "tables": [
                {
                    "microbatch_size": 1,
                    "layers": {
                        "embedding": {"forward_s": 0.001, "backward_s": 0.002, "activation_bytes": 8_000_000},
                        "block.0": {"forward_s": 0.004, "backward_s": 0.008, "activation_bytes": 60_000_000},
                        "block.1": {"forward_s": 0.004, "backward_s": 0.008, "activation_bytes": 60_000_000},
                        "head": {"forward_s": 0.002, "backward_s": 0.004, "activation_bytes": 20_000_000},
                    },
                }
            ],
        }
    ],
}

CLUSTER: dict[str, Any] = {
    "device_types": [{"name": "A100-40G", "memory_bytes": 40 * GIBIBYTE}],
    "devices": [{"id": "gpu0", "type": "A100-40G"}, {"id": "gpu1", "type": "A100-40G"}],
    "links": [{"a": "gpu0", "b": "gpu1", "bandwidth_bytes_per_s": 3e11, "latency_s": 3e-6}],
}

TRAINING: dict[str, Any] = {"kind": "training", "global_batch_size": 8, "microbatch_size": 1}

PROBLEM: dict[str, Any] = {**INLINE_MODEL, "cluster": CLUSTER, "workload": TRAINING}

TINY_PROBLEM: dict[str, Any] = {
    **PROBLEM,
    "cluster": {
        "device_types": [{"name": "A100-40G", "memory_bytes": GIBIBYTE}],
        "devices": [{"id": "gpu0", "type": "A100-40G"}],
    },
}

PLAN_EXAMPLES: dict[str, dict[str, Any]] = {
    "profiled": {
        "summary": "A model with measured costs, on two devices",
        "value": {
            "model": INLINE_MODEL,
            "cluster": CLUSTER,
            "workload": TRAINING,
            "options": {"schedule": "1f1b", "time_limit_s": 10},
        },
    },
    "problem": {
        "summary": "A whole problem document, two stages wanted",
        "value": {"problem": PROBLEM, "options": {"num_stages": 2, "time_limit_s": 10}},
    },
    "infeasible": {
        "summary": "Too little memory: the answer is a result that says what is missing",
        "value": {"problem": TINY_PROBLEM, "options": {"time_limit_s": 10}},
    },
    "catalogue": {
        "summary": "A model of the catalogue on a cluster's short form",
        "value": {
            "model": "gpt2-small",
            "cluster": "2xA100-40G-SXM",
            "workload": {"kind": "training", "global_batch_size": 16},
            "options": {"time_limit_s": 20},
        },
    },
}

ESTIMATE_EXAMPLES: dict[str, dict[str, Any]] = {
    "two-stages": {
        "summary": "Two stages of one device each",
        "value": {
            "problem": PROBLEM,
            "plan": {
                "stages": [
                    {"layers": ["embedding", "block.0"], "replicas": [["gpu0"]]},
                    {"layers": ["block.1", "head"], "replicas": [["gpu1"]]},
                ],
                "schedule": "1f1b",
                "microbatch_size": 1,
                "num_microbatches": 8,
            },
        },
    },
}
