"""From a model to its costs: measured here, or its work recorded, to be priced for devices that are not at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from api.terminal.progress import progress_bar, spinner
from planner.cluster import Cluster
from planner.errors import InputError
from planner.workload import Inference, Training
from profiles.model import ModelRecord, ModelSource, ProfiledModel

LOCAL_DEVICE_TYPE = "cpu-core"
MEASURED_SIZES = (1, 2, 4, 8)
"""Costs are affine between measured microbatch sizes and beyond them, so that few small ones are measured."""


def measured(
    source: ModelSource,
    sizes: Sequence[int],
    repeats: int | None = None,
    *,
    on: str = "cpu",
    device_type: str = LOCAL_DEVICE_TYPE,
) -> ProfiledModel:
    """The model's costs on this machine, at these microbatch sizes, on torch's device `on`."""
    from profiles.recipes import loader_of

    loader = loader_of(source)
    from api.commands.surroundings import like_a_rank
    from profiles.measuring.measure import DEFAULT_REPEATS, measure

    with like_a_rank() as environment, progress_bar("measuring") as advance:
        made = measure(
            loader,
            sizes,
            repeats=repeats or DEFAULT_REPEATS,
            device_type=device_type,
            device=on,
            environment=environment,
            on_progress=advance,
        )
    return replace(made, source=source)


def recorded(source: ModelSource) -> ModelRecord:
    """The model's work, traced on shapes alone."""
    from profiles.recipes import record_of

    with spinner("tracing the model"):
        return record_of(source)


def sizes_to_measure(workload: Training | Inference) -> list[int]:
    """The microbatch size that is wanted, else the small ones that divide the global batch."""
    total = workload.global_batch_size
    if workload.num_microbatches is not None:
        return [max(1, total // workload.num_microbatches)]
    if workload.microbatch_size is not None:
        return [workload.microbatch_size]
    return [size for size in MEASURED_SIZES if total % size == 0]


def is_local(cluster: Cluster) -> bool:
    """Whether the cluster is cores of the machine at hand."""
    return {device.type for device in cluster.devices} == {LOCAL_DEVICE_TYPE}


def check_sequence_length(asked: int | None, record: ModelRecord) -> None:
    """InputError where a record, which holds for one sequence length only, is asked for another."""
    if asked is not None and record.sequence_length is not None and asked != record.sequence_length:
        raise InputError(
            f"{record.name!r} was recorded at sequence length {record.sequence_length}, {asked} is asked: leave "
            "--sequence-length out, or plan from the model's config.json",
            pointer="/workload/sequence_length",
        )
