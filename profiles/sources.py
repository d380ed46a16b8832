"""Where layer graphs and costs come from: one door for catalogue models, files in any known format, and torch models.

gpt2-small                     a recorded model of the catalogue                       -> ModelRecord
vgg16.graph.txt, plan-in.json  a file in a known format, guessed or named              -> ProfiledModel or ModelRecord
-                              the same on standard input
folder, model.onnx, x.json.gz  a format of several files, no text, or packed           -> ProfiledModel or ModelRecord
config.json, folder            a transformers configuration (torch extra)              -> ModelRecord
module:factory                 a Python function (torch extra, runs its code)          -> ModelRecord
model.pt2                      an exported program (torch extra, unpickles it)         -> ModelRecord
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.cluster import Cluster
from planner.errors import InputError
from planner.problem import Problem
from planner.profile import Profile
from planner.workload import Inference, Training
from profiles.catalogue import near_matches
from profiles.importers.base import IMPORTERS, UNNAMED_DEVICE, ImportOptions, read_text
from profiles.importers.reading import read_path
from profiles.model import Grain, ModelRecord, ModelSource, ProfiledModel
from profiles.recipes import (
    CONFIGURATION,
    is_configuration,
    is_exported,
    is_factory,
    loader_of,
    model_source,
    record_of,
)

__all__ = [
    "SourceOptions",
    "build_problem",
    "catalogue_model_names",
    "catalogue_problem",
    "load_source",
    "loader_of",
    "model_source",
    "on_cluster",
    "priced_problem_parts",
    "source_formats",
]

STANDARD_INPUT = "-"
CATALOGUE, TRANSFORMERS, FACTORY, EXPORTED = "catalogue", "transformers", "factory", "exported"
MAX_SOURCE_BYTES = 2**28
TENSOR_DEGREES = (1, 2, 4, 8)
"""Degrees that a search may choose from: up to the devices of a usual node."""
MAX_PRICED_SIZE = 128
"""Largest microbatch size that is priced on its own; beyond it costs are extended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a source leaves open.

    `device_type` names the device of a file that does not say where it was measured, `minibatch_size` the samples of
    its minibatch, `model` one of several models. The next four are those of torch models. `allow_code` must be set for
    `module:factory`, which runs a user's Python code: the command line sets it, the service never.
    """

    device_type: str | None = None
    minibatch_size: int = 1
    model: str | None = None
    sequence_length: int | None = None
    dtype: str = "float32"
    grain: Grain = Grain.BLOCK
    seed: int = 0
    allow_code: bool = False


def source_formats() -> tuple[str, ...]:
    """Everything that `--format` takes."""
    return (*IMPORTERS.names(), CATALOGUE, EXPORTED, FACTORY, TRANSFORMERS)


def load_source(
    source: str,
    *,
    format: str | None = None,
    cluster: Cluster | None = None,
    options: SourceOptions | None = None,
) -> ProfiledModel | ModelRecord:
    """The model that `source` names, in the named `format` or the one that it looks like. For the command line: it
    reads files.

    With a `cluster` a profiled model comes back with profiles for that cluster's device types only. Raises InputError
    for unknown names (with near matches), unreadable files and formats, profiles for other devices than the
    cluster's, a model that needs torch where it is missing.
    """
    given = options or SourceOptions()
    found = _load(source, format, given)
    if cluster is None or isinstance(found, ModelRecord):
        return found
    return on_cluster(found, cluster)


def on_cluster(model: ProfiledModel, cluster: Cluster) -> ProfiledModel:
    """The model with the profiles that the cluster can use.

    A profile that names no device is taken for the cluster's only device type, and says so in its notes. InputError
    when no profile fits.
    """
    if not cluster.devices:
        raise InputError("the cluster has no devices: give at least one", pointer="/cluster/devices")
    types = tuple(dict.fromkeys(device.type for device in cluster.devices))
    profiles = tuple(_adopted(profile, types) for profile in model.profiles)
    fitting = tuple(profile for profile in profiles if profile.device_type in types)
    if fitting:
        return replace(model, profiles=fitting, cluster=cluster)
    measured = ", ".join(repr(profile.device_type) for profile in profiles)
    raise InputError(
        f"the costs are those of device type {measured}, the cluster has {', '.join(map(repr, types))}: plan for a "
        "cluster of that type, profile the model on this one, or say with --device-type which of its types the costs "
        "stand for"
    )


def priced_problem_parts(
    record: ModelRecord,
    cluster: Cluster,
    *,
    microbatch_sizes: Sequence[int],
    tensor: int | Sequence[int] = 1,
    dtype: str | None = None,
) -> tuple[Profile, ...]:
    """Analytic profiles of the record for every device type that the cluster's devices have."""
    from profiles.analytic import price

    kinds = {kind.name: kind for kind in cluster.device_types}
    used = dict.fromkeys(device.type for device in cluster.devices)
    return tuple(
        price(record, kinds[name], microbatch_sizes=microbatch_sizes, tensor=tensor, dtype=dtype)
        for name in used
        if name in kinds
    )


def build_problem(
    model: ProfiledModel | ModelRecord,
    cluster: Cluster | None,
    workload: Training | Inference | None,
    *,
    any_tensor: bool = False,
) -> Problem:
    """The problem of a model on a cluster; what is None comes from the model. Records are priced analytically.

    With `any_tensor` they are priced at all of `TENSOR_DEGREES` that the cluster has devices for.
    """
    carried = model if isinstance(model, ProfiledModel) else None
    cluster = cluster or (carried.cluster if carried else None)
    workload = workload or model.workload
    if cluster is None:
        raise InputError("there is no cluster: give one, for example 8xH100-80G-SXM", pointer="/cluster")
    if workload is None:
        raise InputError("there is no workload: give at least the global batch size", pointer="/workload")
    degrees = _degrees(cluster, workload, any_tensor)
    profiles = on_cluster(carried, cluster).profiles if carried else _priced(model, cluster, workload, degrees)
    return Problem(graph=model.graph, profiles=profiles, cluster=cluster, workload=workload)


def catalogue_model_names() -> tuple[str, ...]:
    """Names of the recorded models."""
    from profiles.records import record_names

    return record_names()


def catalogue_problem(name: str, cluster: Cluster, workload: Training | Inference) -> Problem:
    """The problem of a recorded model. Reads nothing but the catalogue: fit for requests."""
    from profiles.records import load_record

    return build_problem(load_record(name), cluster, workload)


def _degrees(cluster: Cluster, workload: Training | Inference, any_tensor: bool) -> list[int]:
    """The tensor degrees to price."""
    more = [t for t in TENSOR_DEGREES if t <= len(cluster.devices)] if any_tensor else []
    return sorted({max(1, workload.tensor), *more})


def _priced(
    record: ProfiledModel | ModelRecord, cluster: Cluster, workload: Training | Inference, degrees: list[int]
) -> tuple[Profile, ...]:
    assert isinstance(record, ModelRecord)
    return priced_problem_parts(record, cluster, microbatch_sizes=_sizes(workload), tensor=degrees)


def _sizes(workload: Training | Inference) -> list[int]:
    """Microbatch sizes to price: powers of two up to the largest that the workload can ask for."""
    most = max(1, min(workload.microbatch_size or workload.global_batch_size, MAX_PRICED_SIZE))
    return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})


def _load(source: str, format: str | None, options: SourceOptions) -> ProfiledModel | ModelRecord:
    if format is not None and format not in source_formats():
        raise InputError(f"unknown format {format!r}: use one of {', '.join(source_formats())}")
    if format == CATALOGUE or (format is None and source in catalogue_model_names()):
        return _recorded(source)
    if format in (FACTORY, EXPORTED) or (format is None and (_looks_like_factory(source) or is_exported(source))):
        return _built(source, options)
    imported = _import_options(options)
    if source != STANDARD_INPUT and (found := read_path(Path(source), format=format, options=imported)):
        return found
    text = _text_of(source)
    if format == TRANSFORMERS or (format is None and is_configuration(text)):
        return record_of(_recipe(source, text, options))
    return read_text(text, format=format, options=imported)


def _import_options(options: SourceOptions) -> ImportOptions:
    return ImportOptions(
        device_type=options.device_type,
        minibatch_size=options.minibatch_size,
        model=options.model,
        sequence_length=options.sequence_length,
        grain=options.grain,
    )


def _recorded(name: str) -> ModelRecord:
    from profiles.records import load_record

    return load_record(name)


def _looks_like_factory(source: str) -> bool:
    return is_factory(source) and not Path(source).exists()


def _built(source: str, options: SourceOptions) -> ModelRecord:
    if not options.allow_code:
        raise InputError(
            f"{source!r} is Python code or holds some, which is run by the command line only: give a profile"
        )
    return record_of(_recipe(source, None, options))


def _recipe(source: str, text: str | None, options: SourceOptions) -> ModelSource:
    return model_source(
        source,
        text=text,
        sequence_length=options.sequence_length,
        dtype=options.dtype,
        grain=options.grain,
        seed=options.seed,
    )


def _text_of(source: str) -> str:
    """The text of a file, of a folder's config.json, or of standard input."""
    try:
        content = sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1) if source == STANDARD_INPUT else _bytes_of(Path(source))
    except OSError as fault:
        raise InputError(_no_such_source(source, fault)) from None
    except ValueError:  # a null character in a path
        raise InputError(f"{source[:64]!r} is no name of a model or file") from None
    if len(content) > MAX_SOURCE_BYTES:
        raise InputError(f"{source!r} has more than {MAX_SOURCE_BYTES} bytes: give a smaller file")
    try:
        return content.decode()
    except UnicodeDecodeError as fault:
        raise InputError(f"{source!r} is not UTF-8 text (byte {fault.start}): give one of {_formats()}") from None


def _bytes_of(path: Path) -> bytes:
    with (path / CONFIGURATION if path.is_dir() else path).open("rb") as file:
        return file.read(MAX_SOURCE_BYTES + 1)


def _no_such_source(source: str, fault: OSError) -> str:
    names = catalogue_model_names()
    near = near_matches(source, names)
    hint = f"did you mean {' or '.join(near)}?" if near else f"Models: {', '.join(names)}."
    return f"{source[:200]!r} is no recorded model, and as a file it cannot be read ({fault.strerror}): {hint}"


def _formats() -> str:
    return ", ".join(source_formats())


def _adopted(profile: Profile, types: Sequence[str]) -> Profile:
    """The profile for the cluster's only device type, where it names none."""
    if profile.device_type != UNNAMED_DEVICE or len(types) != 1:
        return profile
    note = f"taken for {types[0]}, the only device type of the cluster"
    provenance = replace(profile.provenance, notes=(*profile.provenance.notes, note))
    return replace(profile, device_type=types[0], provenance=provenance)
