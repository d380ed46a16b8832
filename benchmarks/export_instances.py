"""Writes the operator-level instances: real transformers classes on meta tensors, nothing downloaded.

Run as `python -m benchmarks.export_instances [NAME ...]`; needs the `torch` extra. Every model is traced at batch size
1 in bfloat16 with the grain `operator` and priced by a roofline for one A100, forward only:

    seconds = one kernel launch + max(FLOPs / FLOP rate, weight bytes / memory rate) + other bytes / memory rate

with the shares of peak of `profiles.analytic`. An operator that computes and moves nothing takes no time. Transfers
take bytes / `BANDWIDTH`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.compact import CompactInstance
from benchmarks.export_models import RECIPES, Recipe
from planner.graph import LayerGraph
from planner.runtime.program import LOSS_LAYER, RunnableModel, TracedProgram
from profiles.analytic import MATMUL_EFFICIENCY, MEMORY_EFFICIENCY, SATURATION_S
from profiles.catalogue import device_type
from profiles.measuring.record import record
from profiles.model import Grain, LayerWork
from profiles.tracing import from_transformers_config, trace

TARGET = Path(__file__).parent / "instances" / "transformers"
DEVICE = "A100-80G-SXM"
DTYPE = "bfloat16"
BANDWIDTH = 25e9
"""Bytes per second between devices: one 200 Gbit/s port each, as if every device were in a node of its own."""
KERNEL_S = SATURATION_S / 10
"""One kernel launch; `profiles.analytic` counts ten for a layer of the usual grain."""
SHIPPED_DEVICES = 8
PICOSECOND = 12
"""Decimals of seconds that are written."""


def export(name: str) -> CompactInstance:
    """The instance of one recipe."""
    recipe = RECIPES[name]
    program = trace(_runnable(recipe), 1, Grain.OPERATOR)
    _count_experts_on_cpu(program)
    work = record(program, dtype=DTYPE).work
    device = device_type(DEVICE)
    ids = _connected(program.graph)
    size = {layer.id: layer.parameter_bytes for layer in program.graph.layers}
    return CompactInstance(
        name=name,
        source=f"{recipe.source}; {_versions()}",
        device=DEVICE,
        devices=SHIPPED_DEVICES,
        memory_bytes=device.memory_bytes - device.reserved_bytes,
        bandwidth_bytes_per_s=BANDWIDTH,
        layers=[(i, round(_seconds(work[i], device), PICOSECOND), size[i]) for i in ids],
        tensors=_tensors(program.graph, {name: number for number, name in enumerate(ids)}),
    )


def _connected(graph: LayerGraph) -> list[str]:
    """Layers that read or make a tensor, without the loss: counters of batch norms are left out."""
    ends = {end for edge in graph.edges for end in (edge.source, edge.target)}
    return [layer.id for layer in graph.layers if layer.id in ends - {LOSS_LAYER}]


def _count_experts_on_cpu(program: TracedProgram) -> None:
    """Experts' tokens are counted in integers in a trace on meta tensors; the record runs on the CPU, which has float
    histograms only."""
    for node in program.module.graph.nodes:
        if node.target is torch.ops.aten.histc.default:
            cast = node.args[0]
            cast.args = tuple(torch.float32 if value is torch.int32 else value for value in cast.args)


def _seconds(work: LayerWork, device: Any) -> float:
    if not work.forward_flops and not work.forward_moved_bytes:
        return 0.0
    flops_per_s = device.peak_flops_per_s[DTYPE] * MATMUL_EFFICIENCY
    bytes_per_s = device.memory_bandwidth_bytes_per_s * MEMORY_EFFICIENCY
    weights = work.weight_bytes if work.forward_flops else 0
    products = max(work.forward_flops / flops_per_s, weights / bytes_per_s)
    return float(KERNEL_S + products + work.forward_moved_bytes / bytes_per_s)


def _tensors(graph: LayerGraph, position: dict[str, int]) -> list[tuple[int, list[int], int]]:
    """One entry per tensor between layers, in the order of their makers."""
    found: dict[tuple[int, str], tuple[list[int], int]] = {}
    for edge in graph.edges:
        if edge.target != LOSS_LAYER:
            readers, _ = found.setdefault((position[edge.source], edge.tensor), ([], edge.bytes_per_sample))
            readers.append(position[edge.target])
    return [(maker, readers, size) for (maker, _), (readers, size) in sorted(found.items())]


def _runnable(recipe: Recipe) -> RunnableModel:
    if not recipe.inputs:
        return from_transformers_config(recipe.config, sequence_length=recipe.length, device="meta", dtype=DTYPE)
    return _fed(recipe, _model(recipe))


def _model(recipe: Recipe) -> nn.Module:
    """A class that the planner has no task for, on the meta device."""
    import transformers

    values = dict(recipe.config)
    (architecture,) = values.pop("architectures")
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, architecture)(config)
    return model.to(torch.bfloat16)


def _fed(recipe: Recipe, model: nn.Module) -> RunnableModel:
    """`model` with positional inputs in the recipe's order and its one output."""
    original, names = model.forward, list(recipe.inputs)
    options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}

    def forward(*values: torch.Tensor) -> torch.Tensor:
        answer = getattr(original(**dict(zip(names, values, strict=True)), **options), recipe.output)
        assert isinstance(answer, torch.Tensor)
        return answer

    def make_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        return tuple(_zeros(name, shape) for name, shape in recipe.inputs.items()), torch.zeros(1, device="meta")

    model.forward = forward
    return RunnableModel(name=recipe.config["model_type"], model=model, make_batch=make_batch, loss=_mean)


def _zeros(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = torch.long if name.endswith("_ids") else torch.bfloat16
    return torch.zeros(shape, dtype=kind, device="meta")


def _mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Any loss: its layer is not exported."""
    return output.float().mean() + target.sum()


def _versions() -> str:
    import transformers

    return f"traced with torch {torch.__version__}, transformers {transformers.__version__}"


def write(instance: CompactInstance, folder: Path) -> int:
    """Writes the instance, the same bytes for the same instance; how many."""
    text = json.dumps(
        {field.name: getattr(instance, field.name) for field in fields(instance)},
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    content = gzip.compress(text, mtime=0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{instance.name}.json.gz").write_bytes(content)
    return len(content)


def main() -> None:
    """Writes the named instances (all of them without a name) and prints their size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export_instances", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)} (default: all)")
    parser.add_argument("--to", type=Path, default=TARGET, help="folder to write to")
    arguments = parser.parse_args()
    for name in arguments.names or RECIPES:
        start = time.process_time()
        made = export(name)
        size = write(made, arguments.to)
        total = sum(seconds for _, seconds, _ in made.layers)
        print(
            f"{name}: {len(made.layers)} operators, {len(made.tensors)} tensors, {1e3 * total:.3f} ms, {size} bytes, "
            f"{time.process_time() - start:.1f} CPU s",
            flush=True,
        )


if __name__ == "__main__":
    main()
