"""A `device_map` of Hugging Face accelerate and transformers: which module is on which device of one machine.

JSON of module name -> number of the device: its place in the cluster, which is its number on the machine. The model
runs its modules one after the other; a caller that wants several microbatches in flight brings them.

A layer is named by the outermost module that holds no other layer, so that what the layer stands for but is not named
after is placed too: `bert.embeddings` for `bert.embeddings.word_embeddings`.

What cannot be expressed: training, replicas, groups of devices, stages that start inside a module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from planner.exporters.base import EXPORTERS, ExportContext
from planner.graph import Layer
from planner.targets import LOSS, PART_SEPARATOR, TARGETS

BESIDE = {
    "transformer.wte": ("transformer.wpe",),
    "model.decoder.embed_tokens": ("model.decoder.embed_positions",),
    "encoder.embed_tokens": ("shared",),
}
"""Modules with parameters that an embedding needs and no parent of its own holds: positions of GPT-2 and OPT, and the
table that T5's encoder and decoder share."""


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
    home = {name: number[stage.replicas[0][0]] for stage in context.plan.stages for name in stage.layers}
    layers = [layer for layer in context.problem.index.layers if layer.op != LOSS]
    users = _users(layers)
    placed: dict[str, int] = {}
    for layer in layers:
        for name in _modules(layer):
            placed.setdefault(_widest(name, _module(layer), users), home[layer.id])
    return placed


def _modules(layer: Layer) -> tuple[str, ...]:
    """The modules that a layer is known to stand for; later parts of a module are in the first one's."""
    name = _module(layer)
    return (*((layer.entry,) if layer.entry else ()), name, *BESIDE.get(name, ()))


def _module(layer: Layer) -> str:
    return layer.id.partition(PART_SEPARATOR)[0]


def _users(layers: Sequence[Layer]) -> dict[str, set[str]]:
    """Module, at every depth -> the modules of the layers that are in it."""
    users: dict[str, set[str]] = {}
    for layer in layers:
        for prefix in _prefixes(_module(layer)):
            users.setdefault(prefix, set()).add(_module(layer))
    return users


def _widest(name: str, owner: str, users: dict[str, set[str]]) -> str:
    """The outermost module around `name` that holds no layer but its owner; `name` itself where all do."""
    return next((prefix for prefix in _prefixes(name) if users.get(prefix, set()) <= {owner}), name)


def _prefixes(name: str) -> list[str]:
    """`a`, `a.b`, `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
