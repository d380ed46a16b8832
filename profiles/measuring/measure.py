"""`measure`: a profile of a traced model on this machine's CPU or GPU."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from planner.errors import InputError
from planner.graph import LayerGraph
from planner.profile import CostTable, LayerCost, Measurement, Profile, Provenance
from planner.runtime.program import LOSS_LAYER, ProgramLoader, TracedProgram
from profiles.analytic import CPU_ACTION_OVERHEAD_S
from profiles.measuring.chain import LayerChain, Phase
from profiles.measuring.memory import KeptBytes, Makers, PeakBytes, WeightPassBytes, whole_bytes
from profiles.measuring.placing import device_of, placed
from profiles.measuring.stopwatch import Stopwatch, stopwatch_of
from profiles.measuring.timing import (
    DRIFT_LIMIT,
    WARM_UP_CHAINS,
    Measured,
    Timings,
    median,
    time_chains,
    time_optimizer,
)
from profiles.model import ProfiledModel

MIN_REPEATS = 5
DEFAULT_REPEATS = 16
"""Our study of runs: at least 15 chains, every fourth of them split."""
LOCAL_DEVICE_TYPE = "cpu-core"
"""The catalogue's name of one core of the machine at hand."""

OnProgress = Callable[[int, int, str], None]
"""(steps done, steps in all, what is being done)."""


def measure(
    loader: ProgramLoader,
    batch_sizes: Sequence[int],
    *,
    repeats: int = DEFAULT_REPEATS,
    device_type: str = LOCAL_DEVICE_TYPE,
    device: str = "cpu",
    environment: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> ProfiledModel:
    """The model's graph with seconds and bytes per layer, for each microbatch size, as `device` (of torch) has them.

    Forward, backward, and backward split into input and weight gradients (torch's own functions): medians of `repeats`
    whole chains (at least 5, every fourth followed by a split one) after three warm-up chains, gradients accumulating,
    first layer without input gradient. On a CPU one thread and its CPU time, on a GPU events in its stream. The loss is
    the layer `loss`. Kept bytes are exact (autograd's own saved tensors); workspace is the peak of tensor storages
    while a layer runs, without scratch memory inside kernels. Drift above 3 %, between the halves of a measurement or
    between microbatch sizes (by a reference workload), is noted in the provenance. `environment` says what the caller
    did to make the machine behave as it will in a run (see `planner.runtime.environment`); it is written down.
    """
    _check(batch_sizes, repeats)
    sizes = sorted(set(batch_sizes))
    place = device_of(device)
    stopwatch = stopwatch_of(place)
    progress = _Progress(on_progress, len(sizes) * (WARM_UP_CHAINS + repeats + 3))
    tables = list[CostTable]()
    graph: LayerGraph | None = None
    dtype = "float32"
    with _one_thread():
        for size in sizes:
            program = placed(_load(loader, size, graph, progress), place)
            graph, dtype = program.graph, _dtype(program)
            tables.append(_table(program, repeats, stopwatch, progress))
    assert graph is not None
    profile = Profile(
        device_type=device_type,
        dtype=dtype,
        tables=tuple(tables),
        action_overhead_s=CPU_ACTION_OVERHEAD_S if place.type == "cpu" else 0.0,
        provenance=_provenance(repeats, place, stopwatch, environment or {}, tables),
    )
    return ProfiledModel(graph=graph, profiles=(profile,))


def _check(batch_sizes: Sequence[int], repeats: int) -> None:
    if not batch_sizes:
        raise InputError("no microbatch size is given: measure at least one")
    if min(batch_sizes) < 1:
        raise InputError(f"microbatch size is {min(batch_sizes)}: it must be at least 1")
    if repeats < MIN_REPEATS:
        raise InputError(f"repeats is {repeats}: medians need at least {MIN_REPEATS} chains")


def _load(loader: ProgramLoader, size: int, before: LayerGraph | None, progress: _Progress) -> TracedProgram:
    progress.step(f"tracing with microbatch size {size}")
    program = loader(size)
    if before is not None and [layer.id for layer in before.layers] != [layer.id for layer in program.graph.layers]:
        raise InputError(
            f"the layers differ between microbatch sizes (at {size}): make the model's code independent of it"
        )
    return program


def _table(program: TracedProgram, repeats: int, stopwatch: Stopwatch, progress: _Progress) -> CostTable:
    """Costs at one microbatch size: bytes first (observers slow the chain down), then seconds."""
    size = program.batch_size
    chain = LayerChain(program)
    makers = Makers()
    watched = LayerChain(program, watcher=makers)
    kept, peak, late = KeptBytes(watched, makers), PeakBytes(), WeightPassBytes()
    progress.step(f"microbatch size {size}: bytes per layer")
    watched.run(kept)
    chain.run(peak)
    chain.run(late, split=True)
    measured = time_chains(chain, repeats, stopwatch, lambda: progress.step(f"microbatch size {size}: seconds"))
    progress.step(f"microbatch size {size}: optimizer")
    optimizer = time_optimizer(chain, repeats, stopwatch)
    layers = (*chain.layer_ids, LOSS_LAYER)
    return CostTable(
        microbatch_size=size,
        layers={
            layer: _cost(
                layer,
                measured.timings,
                (kept.bytes_of[layer] + program.held_output_bytes(layer), whole_bytes(kept, program, layer)),
                peak.bytes_of[layer] + program.held_output_bytes(layer),
                optimizer.get(layer, 0.0),
                late.bytes_of.get(layer),
            )
            for layer in layers
        },
        measurement=_measurement(measured, layers, repeats),
    )


def _cost(
    layer: str,
    timings: Timings,
    kept: tuple[int, int],
    workspace: int,
    optimizer_s: float,
    weight_pass_bytes: int | None,
) -> LayerCost:
    """`kept` are the kept bytes, and those of them that only sequence parallelism divides."""
    has_split = bool(timings.seconds(layer, Phase.BACKWARD_WEIGHT))
    return LayerCost(
        forward_s=timings.median(layer, Phase.FORWARD),
        backward_s=timings.median(layer, Phase.BACKWARD),
        backward_input_s=timings.median(layer, Phase.BACKWARD_INPUT) if has_split else None,
        backward_weight_s=timings.median(layer, Phase.BACKWARD_WEIGHT) if has_split else None,
        activation_bytes=kept[0],
        sequence_activation_bytes=kept[1],
        workspace_bytes=workspace,
        optimizer_s=optimizer_s,
        weight_pass_bytes=weight_pass_bytes,
    )


def _measurement(measured: Measured, layers: Sequence[str], repeats: int) -> Measurement:
    return Measurement(
        num_chains=repeats,
        reference_s=median(measured.reference_s),
        drift=round(measured.drift(), 4),
        spread={layer: round(measured.timings.spread(layer), 4) for layer in layers},
    )


def _dtype(program: TracedProgram) -> str:
    """The dtype of most parameter bytes."""
    sizes: dict[str, int] = {}
    for parameter in program.module.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + parameter.numel()
    return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def _provenance(
    repeats: int, place: torch.device, stopwatch: Stopwatch, environment: Mapping[str, str], tables: list[CostTable]
) -> Provenance:
    threads = {"threads": "1"} if place.type == "cpu" else {}
    return Provenance(
        method=f"measured: {stopwatch.method}, medians of {repeats} chains after {WARM_UP_CHAINS}",
        tool=f"torch {torch.__version__}",
        created=datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        host=_host(place),
        environment={**threads, **environment},
        notes=tuple(_drift_notes(tables)),
    )


def _drift_notes(tables: Sequence[CostTable]) -> Iterator[str]:
    """What the reference workload and the halves of the measurements say about the host."""
    for table in tables:
        if table.measurement is not None and table.measurement.drift > DRIFT_LIMIT:
            yield (
                f"microbatch size {table.microbatch_size}: the second half of the chains differs by "
                f"{table.measurement.drift:.1%} from the first, the host drifted: measure again on a quiet machine"
            )
    references = [table.measurement.reference_s for table in tables if table.measurement is not None]
    apart = max(references) / min(references) - 1 if references else 0.0
    if apart > DRIFT_LIMIT:
        yield (
            f"the reference workload took {apart:.1%} longer at one microbatch size than at another, the host drifted: "
            "measure again on a quiet machine"
        )


def _host(place: torch.device) -> str:
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    return f"{cpu_name()} ({os.cpu_count()} cores)"


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Progress:
    """Counts steps and tells them to the caller."""

    def __init__(self, on_progress: OnProgress | None, total: int) -> None:
        self._on_progress, self._total, self._done = on_progress, total, 0

    def step(self, text: str) -> None:
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._total, text)
