"""Sailor's profiles (Strati et al., SOSP 2025; its repository's `sailor/Planner`): measured layers of language models.

A folder with

    .../MODEL/GPU/profile.json   {microbatch size: {tensor degree: {layer: [forward, backward, update seconds]}}}
    llm_info.json                {model: {tensor degree: {layer: bytes of one sample}}}
    training_config*.json        global batch size and sequence length of a model (optional)

All GPUs become profiles, under the catalogue's names where it has them; `device_type` picks one. Layers are a chain.

    forward_s, backward_s, optimizer_s   the three seconds
    parameter_bytes                      `params_bytes` at degree 1; its replicated part is fitted to the next degree
    activation_bytes                     `act_mem_bytes` of the degree times the microbatch size
    bytes_per_sample of an edge          `act_output_bytes` of its source

Network coefficients, quotas and zones are not read: name the cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph
from planner.profile import DTYPE_BYTES, CostTable, LayerCost, Profile, Provenance
from planner.workload import Training
from profiles.importers._choice import one_of
from profiles.importers._sailor_files import SIZES, SailorFiles, Sizes, Times, is_sailor_file, read_files
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.model import ProfiledModel

CATALOGUE_NAMES = {
    "A100-40": "A100-40G-SXM",
    "A100-80": "A100-80G-SXM",
    "V100-16": "V100-16G",
    "RTX-3090": "RTX-3090",
}
"""Sailor's names of GPUs that our catalogue has (its A100 are those of cloud machines with NVLink)."""
DTYPE_OF_ITEMSIZE = {4: "float32", 2: "bfloat16"}
_MARKS = (
    re.compile(rb'"act_mem_bytes"\s*:'),
    re.compile(rb'\A\s*\{\s*"\d+"\s*:\s*\{\s*"\d+"\s*:\s*\{\s*"0"\s*:\s*\[\s*[\d.e+-]+\s*,'),
)


@IMPORTERS.register
class Sailor:
    """Reads a folder of Sailor's planner."""

    name = "sailor"

    def sniff(self, head: bytes) -> bool:
        """Sizes by their field names, times by three levels of numbers."""
        return any(mark.search(head) for mark in _MARKS)

    def wants(self, path: str) -> bool:
        """Times, sizes and configurations, wherever they are in the folder."""
        return is_sailor_file(path)

    def read(self, text: str, options: ImportOptions) -> ProfiledModel:
        """Refused: times and sizes are in different files."""
        raise InputError(f"a Sailor profile is a folder with MODEL/GPU/profile.json and {SIZES}: give that folder")

    def read_files(self, files: Mapping[str, bytes], options: ImportOptions) -> ProfiledModel:
        """See the module."""
        if not all(is_sailor_file(path) for path in files):
            self.read("", options)
        found = read_files(files)
        model = one_of([name for name in found.times if name in found.sizes], options.model, "Sailor model")
        times, sizes = _consistent(found, model)
        profiles = tuple(_profile(gpu, times[gpu], sizes, found, model) for gpu in _picked(times, options.device_type))
        return ProfiledModel(graph=_graph(model, sizes), profiles=profiles, workload=_workload(found, model, sizes))


GpuTimes = dict[tuple[int, int], Times]


def _consistent(found: SailorFiles, model: str) -> tuple[dict[str, GpuTimes], dict[int, tuple[Sizes, ...]]]:
    """Times and sizes of the model, when all have the same layers."""
    sizes = found.sizes[model]
    if 1 not in sizes:
        raise InputError(
            f"{SIZES}: {model} has no tensor degree 1: every layer needs its whole size", pointer=f"/{model}"
        )
    count = len(sizes[1])
    for degree, layers in sizes.items():
        if len(layers) != count:
            raise InputError(
                f"{SIZES}: {model} has {len(layers)} layers at tensor degree {degree} and {count} at degree 1: they "
                "must be as many",
                pointer=f"/{model}/{degree}",
            )
    for gpu, tables in found.times[model].items():
        for (size, degree), times in tables.items():
            if len(times) != count:
                raise InputError(
                    f"{model}/{gpu}/profile.json has {len(times)} layers at microbatch size {size}, tensor degree "
                    f"{degree}, and {SIZES} has {count}: they must be as many",
                    pointer=f"/{size}/{degree}",
                )
    return {gpu: tables for gpu, tables in found.times[model].items() if tables}, sizes


def _picked(times: Mapping[str, GpuTimes], device_type: str | None) -> list[str]:
    """The GPUs that are read: all, or the one that is named, in Sailor's words or the catalogue's."""
    picked = [gpu for gpu in times if device_type in (None, gpu, CATALOGUE_NAMES.get(gpu))]
    if not picked:
        raise InputError(f"there are no times on {device_type!r}: use one of {', '.join(times) or 'none'}")
    return picked


def _layer_id(number: int) -> str:
    return f"layer.{number}"


def _graph(model: str, sizes: dict[int, tuple[Sizes, ...]]) -> LayerGraph:
    above = min((degree for degree in sizes if degree > 1), default=None)
    layers = tuple(
        Layer(
            id=_layer_id(i),
            parameter_bytes=whole.params_bytes,
            replicated_parameter_bytes=_replicated(whole, sizes[above][i], above) if above else 0,
        )
        for i, whole in enumerate(sizes[1])
    )
    edges = tuple(
        Edge(source=_layer_id(i), target=_layer_id(i + 1), bytes_per_sample=layer.act_output_bytes)
        for i, layer in enumerate(sizes[1][:-1])
    )
    return LayerGraph(layers=layers, edges=edges, name=model)


def _replicated(whole: Sizes, part: Sizes, degree: int) -> int:
    """r with part = r + (whole - r) / degree."""
    excess = part.params_bytes - whole.params_bytes / degree
    return math.floor(min(whole.params_bytes, max(0.0, excess * degree / (degree - 1))))


def _profile(
    gpu: str, tables: GpuTimes, sizes: dict[int, tuple[Sizes, ...]], found: SailorFiles, model: str
) -> Profile:
    configuration = found.configurations.get(model)
    return Profile(
        device_type=CATALOGUE_NAMES.get(gpu, gpu),
        dtype=_dtype(model, sizes[1]),
        tables=tuple(
            CostTable(
                microbatch_size=size,
                tensor=degree,
                sequence_length=configuration.sequence_length if configuration else None,
                layers=dict(_costs(tables[size, degree], _kept(sizes, degree), size)),
            )
            for size, degree in sorted(tables)
        ),
        provenance=Provenance(method="imported", tool="Sailor profile", notes=tuple(_notes(gpu, tables, sizes, found))),
    )


def _costs(times: Times, kept: list[int], size: int) -> Iterator[tuple[str, LayerCost]]:
    for number, (forward_s, backward_s, update_s) in enumerate(times):
        yield (
            _layer_id(number),
            LayerCost(
                forward_s=forward_s,
                backward_s=backward_s,
                activation_bytes=kept[number] * size,
                optimizer_s=update_s,
            ),
        )


def _kept(sizes: dict[int, tuple[Sizes, ...]], degree: int) -> list[int]:
    """Kept bytes of one sample per layer, at the largest recorded degree up to `degree`."""
    return [layer.act_mem_bytes for layer in sizes[max(known for known in sizes if known <= degree)]]


def _dtype(model: str, layers: tuple[Sizes, ...]) -> str:
    """What bytes and numbers of parameters say."""
    counted = sum(layer.params_floats for layer in layers)
    stored = sum(layer.params_bytes for layer in layers)
    for itemsize, dtype in DTYPE_OF_ITEMSIZE.items():
        if stored == itemsize * counted:
            return dtype
    raise InputError(
        f"{SIZES}: {model} has {stored} bytes for {counted} parameters: it must be 4 or 2 bytes for each",
        pointer=f"/{model}",
    )


def _notes(gpu: str, tables: GpuTimes, sizes: dict[int, tuple[Sizes, ...]], found: SailorFiles) -> Iterator[str]:
    yield "the sizes of llm_info.json are those of one sample, by tensor degree; kept bytes grow with the microbatch"
    if all(len({update for _, _, update in layers}) == 1 for layers in tables.values()):
        yield "update seconds are the same for layers of all sizes: those of the whole model divided evenly"
    if gpu in CATALOGUE_NAMES:
        yield f"Sailor calls the device {gpu}"
    missing = sorted({degree for _, degree in tables} - sizes.keys())
    if missing:
        degrees = ", ".join(map(str, missing))
        yield f"kept bytes at tensor degree {degrees} are those of the next smaller degree, which is too much"


def _workload(found: SailorFiles, model: str, sizes: dict[int, tuple[Sizes, ...]]) -> Training | None:
    configuration = found.configurations.get(model)
    if configuration is None:
        return None
    itemsize = float(DTYPE_BYTES[_dtype(model, sizes[1])])
    return Training(
        global_batch_size=configuration.global_batch_size,
        sequence_length=configuration.sequence_length,
        weight_bytes_per_parameter=itemsize,
        gradient_bytes_per_parameter=itemsize,
    )
