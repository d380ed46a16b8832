"""A `device_map` of Hugging Face accelerate and transformers: which module is on which device of one machine.

JSON of module name -> number of the device: its place in the cluster, which is its number on the machine. The model
runs its modules one after the other; a caller that wants several microbatches in flight brings them.

A layer that stands for a part of a model (embedding, head) is named by the module below what it has in common with the
repeated blocks, so that the modules beside it are placed too: `bert.embeddings` for `bert.embeddings.word_embeddings`.

What cannot be expressed: training, replicas, groups of devices, stages that start inside a module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from planner.blocks import blocks_of
from planner.errors import InputError
from planner.exporters.base import EXPORTERS, ExportContext
from planner.graph import GraphIndex, Layer
from planner.targets import LOSS, PART_SEPARATOR, TARGETS

BESIDE = {"transformer.wte": ("transformer.wpe",), "model.decoder.embed_tokens": ("model.decoder.embed_positions",)}
"""Modules with parameters that stand beside an embedding without a parent of their own: GPT-2's and OPT's positions."""


@EXPORTERS.register
class DeviceMap:
    """Module names and device numbers; refuses what one process with several devices cannot express."""

    name = "device_map"
    media_type = "application/json"
    file_suffix = ".device_map.json"

    def export(self, context: ExportContext) -> str:
        """The map as JSON text; ExportError naming the stage that it cannot express."""
        TARGETS[self.name].check(context.plan, context.problem)
        return json.dumps(device_map(context), indent=2, ensure_ascii=False) + "\n"


def device_map(context: ExportContext) -> dict[str, int]:
    """Module -> number of its device, in execution order."""
    number = {device: place for place, device in enumerate(context.problem.devices)}
    index = context.problem.index
    stage_of = {name: s for s, stage in enumerate(context.plan.stages) for name in stage.layers}
    layers = [layer for layer in index.layers if layer.op != LOSS]
    blocks = _repeated(index)
    found = [(name, stage_of[layer.id]) for layer in layers for name in modules_of(layer, blocks)]
    if len(set(found)) > len(dict(found)):  # parts of one module on two stages: name the parts
        found = [(layer.id, stage_of[layer.id]) for layer in layers]
    return {name: number[context.plan.stages[s].replicas[0][0]] for name, s in found}


def modules_of(layer: Layer, blocks: Sequence[str]) -> tuple[str, ...]:
    """The modules that a layer stands for; later parts of a module are in the first one's."""
    name = layer.id.partition(PART_SEPARATOR)[0]
    if layer.id in blocks:
        return (name,)
    names = (*((layer.entry,) if layer.entry else ()), name, *BESIDE.get(name, ()))
    return tuple(dict.fromkeys(_beside(each, blocks) for each in names))


def _repeated(index: GraphIndex) -> tuple[str, ...]:
    try:
        return blocks_of(index).blocks
    except InputError:
        return ()


def _beside(name: str, blocks: Sequence[str]) -> str:
    """The module below the last one that the layer and the blocks are both in; the layer's own without blocks."""
    if not blocks:
        return name
    mine, theirs, common = name.split("."), blocks[0].split("."), 0
    while common < min(len(mine), len(theirs)) - 1 and mine[common] == theirs[common]:
        common += 1
    return ".".join(mine[: common + 1])
