"""`measure`: a profile of a traced model on this machine's CPU."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from planner.errors import InputError
from planner.graph import LayerGraph
from planner.profile import CostTable, LayerCost, Profile, Provenance
from planner.runtime.program import LOSS_LAYER, ProgramLoader, TracedProgram
from profiles.analytic import CPU_ACTION_OVERHEAD_S
from profiles.measuring.chain import LayerChain, Phase
from profiles.measuring.memory import KeptBytes, Makers, PeakBytes, whole_bytes
from profiles.measuring.timing import DRIFT_LIMIT, WARM_UP_CHAINS, Timings, time_chains, time_optimizer
from profiles.model import ProfiledModel

MIN_REPEATS = 5
LOCAL_DEVICE_TYPE = "cpu-core"
"""The catalogue's name of one core of the machine at hand."""

OnProgress = Callable[[int, int, str], None]
"""(steps done, steps in all, what is being done)."""


def measure(
    loader: ProgramLoader,
    batch_sizes: Sequence[int],
    *,
    repeats: int = MIN_REPEATS,
    device_type: str = LOCAL_DEVICE_TYPE,
    on_progress: OnProgress | None = None,
) -> ProfiledModel:
    """The model's graph with forward, backward and optimizer seconds and bytes per layer, for each microbatch size.

    One thread, thread CPU time, medians of `repeats` whole chains (at least 5) after three warm-up chains, gradients
    accumulating, first layer without input gradient. The loss is the layer `loss`. Kept bytes are exact (autograd's
    own saved tensors); workspace is the peak of tensor storages while a layer runs, without scratch memory inside
    kernels. Drift above 3 % between the two halves of a measurement is noted in the provenance. For figures that
    hold in a run, give both the same allocator settings (see `planner.runtime.environment`).
    """
    _check(batch_sizes, repeats)
    sizes = sorted(set(batch_sizes))
    progress = _Progress(on_progress, len(sizes) * (WARM_UP_CHAINS + repeats + 3))
    tables, notes = [], list[str]()
    graph: LayerGraph | None = None
    dtype = "float32"
    with _one_thread():
        for size in sizes:
            program = _load(loader, size, graph, progress)
            graph, dtype = program.graph, _dtype(program)
            tables.append(_table(program, repeats, progress, notes))
    assert graph is not None
    profile = Profile(
        device_type=device_type,
        dtype=dtype,
        tables=tuple(tables),
        action_overhead_s=CPU_ACTION_OVERHEAD_S,
        provenance=_provenance(repeats, notes),
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


def _table(program: TracedProgram, repeats: int, progress: _Progress, notes: list[str]) -> CostTable:
    """Costs at one microbatch size: bytes first (observers slow the chain down), then seconds."""
    size = program.batch_size
    chain = LayerChain(program)
    makers = Makers()
    watched = LayerChain(program, watcher=makers)
    kept, peak = KeptBytes(watched, makers), PeakBytes()
    progress.step(f"microbatch size {size}: bytes per layer")
    watched.run(kept)
    chain.run(peak)
    timings = time_chains(chain, repeats, lambda: progress.step(f"microbatch size {size}: seconds per layer"))
    progress.step(f"microbatch size {size}: optimizer")
    optimizer = time_optimizer(chain, repeats)
    if timings.drift() > DRIFT_LIMIT:
        notes.append(
            f"microbatch size {size}: the second half of the chains differs by {timings.drift():.1%} from the first, "
            "the host drifted: measure again on a quiet machine"
        )
    return CostTable(
        microbatch_size=size,
        layers={
            layer: _cost(
                layer,
                timings,
                (kept.bytes_of[layer] + program.held_output_bytes(layer), whole_bytes(kept, program, layer)),
                peak.bytes_of[layer] + program.held_output_bytes(layer),
                optimizer.get(layer, 0.0),
            )
            for layer in (*chain.layer_ids, LOSS_LAYER)
        },
    )


def _cost(layer: str, timings: Timings, kept: tuple[int, int], workspace: int, optimizer_s: float) -> LayerCost:
    """`kept` are the kept bytes, and those of them that only sequence parallelism divides."""
    return LayerCost(
        forward_s=timings.median(layer, Phase.FORWARD),
        backward_s=timings.median(layer, Phase.BACKWARD),
        activation_bytes=kept[0],
        sequence_activation_bytes=kept[1],
        workspace_bytes=workspace,
        optimizer_s=optimizer_s,
    )


def _dtype(program: TracedProgram) -> str:
    """The dtype of most parameter bytes."""
    sizes: dict[str, int] = {}
    for parameter in program.module.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + parameter.numel()
    return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def _provenance(repeats: int, notes: list[str]) -> Provenance:
    return Provenance(
        method=f"measured: thread CPU time, 1 thread, medians of {repeats} chains after {WARM_UP_CHAINS}",
        tool=f"torch {torch.__version__}",
        created=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        host=f"{cpu_name()} ({os.cpu_count()} cores)",
        notes=tuple(notes),
    )


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
