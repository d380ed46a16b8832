"""A traced program on another device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from planner.errors import InputError
from planner.runtime.program import RunnableModel, TracedProgram


def device_of(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:1`. InputError for anything else, and for a GPU that torch does not see."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"{name!r} is no device of torch: give cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"seconds are measured on cpu and cuda, not on {name!r}: give cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"{name!r} is asked for, torch sees {torch.cuda.device_count()} GPUs: measure on cpu, or price a GPU that "
            "is not at hand with --device"
        )
    return device


def placed(program: TracedProgram, device: torch.device) -> TracedProgram:
    """The program with its parameters, buffers and data on `device`; the model itself moves along."""
    if device.type == "cpu":
        return program
    program.runnable.model.to(device)
    module = fx.GraphModule(program.module, on_device(program.module.graph, device), class_name="Placed").to(device)
    return replace(program, module=module, runnable=_batches_on(program.runnable, device))


def on_device(graph: fx.Graph, device: torch.device) -> fx.Graph:
    """A copy in which operators that make tensors make them on `device` (they name the device of the trace)."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))

    def moved(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    for node in copy.nodes:
        node.args, node.kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
    return copy


def _batches_on(runnable: RunnableModel, device: torch.device) -> RunnableModel:
    def make_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        inputs, target = runnable.make_batch(batch_size, seed)
        return tuple(tensor.to(device) for tensor in inputs), target.to(device)

    return replace(runnable, make_batch=make_batch)
