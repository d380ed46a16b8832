"""`trace`: a runnable model becomes a layer graph with the layer of every operator."""

from __future__ import annotations

from torch import fx

from planner.errors import InputError
from planner.runtime.program import RunnableModel, TracedProgram
from profiles.model import Grain
from profiles.tracing.capture import capture
from profiles.tracing.grouping import group
from profiles.tracing.in_place import make_out_of_place
from profiles.tracing.layer_graph import build_graph
from profiles.tracing.operators import group_operators


def trace(runnable: RunnableModel, batch_size: int, grain: Grain | str = Grain.BLOCK) -> TracedProgram:
    """Traces `runnable` for microbatches of `batch_size` samples; no cost is measured.

    Layer ids and parameters do not depend on the batch size and are the same in every run. See `capture` for the
    state the model is put in, `group` and `group_operators` for what a layer is. Modules that torch.export cannot
    follow are run as a whole, except at grain `operator`. InputError for models that it cannot follow at all.
    """
    if batch_size < 1:
        raise InputError(f"batch size is {batch_size}: it must be at least 1")
    wanted = Grain(grain)
    module = capture(runnable, batch_size, keep_whole=wanted is not Grain.OPERATOR)
    layer_of = _layers(module, runnable, wanted)
    graph = build_graph(module, runnable.model, layer_of, batch_size, runnable.name)
    return TracedProgram(runnable=runnable, graph=graph, module=module, layer_of_node=layer_of, batch_size=batch_size)


def _layers(module: fx.GraphModule, runnable: RunnableModel, grain: Grain) -> dict[str, str]:
    if grain is Grain.OPERATOR:
        make_out_of_place(module)
        return group_operators(module)
    return group(module, runnable.model, grain)
