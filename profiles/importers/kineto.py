"""Chrome traces of torch.profiler (Kineto): forward and backward seconds per layer of one iteration.

Which work is whose is a rule (`profiles.importers._trace_layers`): annotations or modules are layers, autograd nodes go
to the layer of their forward operator. Seconds are microseconds of the trace:

- with kernels in the trace: of the kernels and copies that an operator launched (by correlation id), NCCL's left out;
- else: of the operators themselves, on the CPU.

A layer whose annotation is there several times ran several microbatches: figures are per microbatch, of which there are
as many as annotations of the layer that has the fewest. Of several `ProfilerStep#` the last one is read. Shapes
(`record_shapes`) give parameters and outputs, memory events (`profile_memory`) what is kept until the backward pass;
without them bytes are 0 and the notes say so. `ImportOptions.minibatch_size` is the number of samples of a microbatch.
A trace does not show which layer reads which: the graph is a chain in the order of time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from planner.checks import MAX_ID_LENGTH
from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph
from planner.profile import CostTable, LayerCost, Profile, Provenance
from profiles.importers._trace_bytes import kept_bytes, output_bytes, parameter_bytes
from profiles.importers._trace_events import KERNELS, MICROSECONDS, Span, Trace, Windows, read_trace
from profiles.importers._trace_layers import Layers, Role, Work, assigned
from profiles.importers.base import IMPORTERS, UNNAMED_DEVICE, ImportOptions
from profiles.model import ProfiledModel

COLLECTIVE = re.compile("nccl", re.IGNORECASE)
LAUNCHES = ("cuda_runtime", "cuda_driver")
CORRELATION, EXTERNAL = "correlation", "External id"
_MARKS = (b'"traceEvents"', b'"ph"')


@dataclass(slots=True)
class _Seconds:
    """Seconds of all passes: per layer and direction, and of what is no layer's."""

    of: dict[tuple[str, Role], float] = field(default_factory=dict)
    collectives: float = 0.0

    def add(self, work: Work | None, seconds: float) -> None:
        """Count seconds for the owner of some work."""
        key = (work.layer, work.role) if work else ("", Role.OTHER)
        self.of[key] = self.of.get(key, 0.0) + seconds

    def total(self, role: Role) -> float:
        """Seconds in one role, of all layers."""
        return sum(seconds for (_, each), seconds in self.of.items() if each is role)


@IMPORTERS.register
class Kineto:
    """Reads the JSON that `export_chrome_trace` writes."""

    name = "kineto"

    def sniff(self, head: bytes) -> bool:
        """The key of the events, or an event at once."""
        return head.lstrip()[:1] in (b"{", b"[") and (
            _MARKS[0] in head or (head.lstrip()[:1] == b"[" and _MARKS[1] in head)
        )

    def read(self, text: str, options: ImportOptions) -> ProfiledModel:
        """See the module."""
        if options.minibatch_size < 1:
            raise InputError(f"minibatch size is {options.minibatch_size}: it must be at least 1")
        trace = read_trace(text)
        layers = assigned(trace, options.grain)
        if not layers.windows:
            raise InputError(
                "the trace holds no forward operators (category cpu_op): record it with ProfilerActivity.CPU, and name "
                "the layers with torch.profiler.record_function",
                pointer="/traceEvents",
            )
        return _Reading(trace, layers, options).model()


class _Reading:
    """One trace on its way to a model."""

    def __init__(self, trace: Trace, layers: Layers, options: ImportOptions) -> None:
        self._layers, self._options = layers, options
        self._on_cpu = not any(trace.of(category) for category in KERNELS)
        self._seconds = _on_cpu(layers) if self._on_cpu else _on_device(trace, layers)
        self._passes = min(layers.runs.values())
        self._parameters = parameter_bytes(layers.work)
        self._outputs = output_bytes(layers.work)
        self._kept = kept_bytes(trace, layers, self._on_cpu)
        self._has_memory = bool(trace.memory)
        self._ids = self._in_order()

    def model(self) -> ProfiledModel:
        """The chain of layers with its profile."""
        layers = tuple(Layer(id=name, parameter_bytes=self._parameter_bytes(name)) for name in self._ids)
        edges = tuple(
            Edge(source=a, target=b, bytes_per_sample=-(-self._outputs.get(a, 0) // self._options.minibatch_size))
            for a, b in pairwise(self._ids)
        )
        return ProfiledModel(graph=LayerGraph(layers=layers, edges=edges), profiles=(self._profile(),))

    def _in_order(self) -> list[str]:
        """Layers that took time or are annotated, by their first work."""
        names = dict.fromkeys(w.layer for w in self._layers.work if w.role is Role.FORWARD)
        annotated = self._layers.runs
        kept = [name for name in names if name in annotated or any((name, role) in self._seconds.of for role in Role)]
        for name in kept:
            if not 0 < len(name) <= MAX_ID_LENGTH:
                raise InputError(f"an annotation has {len(name)} characters: it must have 1 to {MAX_ID_LENGTH}")
        return kept

    def _parameter_bytes(self, layer: str) -> int:
        return sum(self._parameters.get(layer, {}).values()) // self._passes

    def _profile(self) -> Profile:
        table = CostTable(
            microbatch_size=self._options.minibatch_size, layers={name: self._cost(name) for name in self._ids}
        )
        return Profile(
            device_type=self._options.device_type or UNNAMED_DEVICE,
            dtype=self._dtype(),
            tables=(table,),
            provenance=Provenance(method="imported", tool="torch.profiler trace", notes=tuple(self._notes())),
        )

    def _cost(self, layer: str) -> LayerCost:
        return LayerCost(
            forward_s=self._seconds.of.get((layer, Role.FORWARD), 0.0) / self._passes,
            backward_s=self._seconds.of.get((layer, Role.BACKWARD), 0.0) / self._passes,
            activation_bytes=-(-self._kept.get(layer, 0) // self._passes),
            optimizer_s=self._optimizer_s(layer),
        )

    def _optimizer_s(self, layer: str) -> float:
        """The layer's part of the optimizer's seconds, by its parameters."""
        whole = sum(self._parameter_bytes(name) for name in self._ids)
        share = self._parameter_bytes(layer) / whole if whole else 0.0
        return share * self._seconds.total(Role.OPTIMIZER)

    def _dtype(self) -> str:
        """The dtype of most parameter bytes."""
        counts: dict[str, int] = {}
        for of_layer in self._parameters.values():
            for dtype, count in of_layer.items():
                counts[dtype] = counts.get(dtype, 0) + count
        return max(counts, key=lambda dtype: counts[dtype], default="float32")

    def _notes(self) -> Iterator[str]:
        busy = (
            "operators on the CPU" if self._on_cpu else "kernels and copies on the device, without waits between them"
        )
        yield f"seconds are those of {busy}; {self._passes} microbatch(es) of {self._options.minibatch_size} sample(s)"
        yield "a trace does not show which layer reads which: a chain in the order of time"
        if self._options.device_type is None:
            yield "the trace is not taken to name the device that it was recorded on"
        if not self._parameters:
            yield "no parameter and output bytes: record the trace with record_shapes and a backward pass"
        if not self._has_memory:
            yield "no kept bytes: record the trace with profile_memory"
        yield from self._left_out()

    def _left_out(self) -> Iterator[str]:
        optimizer_s = self._seconds.total(Role.OPTIMIZER)
        others_s = self._seconds.total(Role.OTHER)
        lost_s = sum(
            seconds
            for (layer, role), seconds in self._seconds.of.items()
            if role in (Role.FORWARD, Role.BACKWARD) and layer not in self._ids
        )
        if optimizer_s and not self._parameters:
            yield f"left out: {optimizer_s:.6g} s of the optimizer, since no layer's parameters are known"
        if others_s + lost_s:
            yield f"left out: {others_s + lost_s:.6g} s of work that is no layer's"
        if self._seconds.collectives:
            yield f"left out: {self._seconds.collectives:.6g} s of collectives, which are priced by the cluster's links"


def _on_cpu(layers: Layers) -> _Seconds:
    """Seconds of the outermost operators."""
    found = _Seconds()
    for work in layers.work:
        found.add(work, work.node.span.duration_us / MICROSECONDS)
    return found


def _on_device(trace: Trace, layers: Layers) -> _Seconds:
    """Seconds of kernels, for the outermost operator that launched them."""
    work_of = {work.node.span: work for work in layers.work}
    operators = Windows(work_of)
    external = {span.whole(EXTERNAL): work for work in layers.work for span in work.node.all()}
    launches = {span.whole(CORRELATION): span for category in LAUNCHES for span in trace.of(category)}
    found = _Seconds()
    for kernel in (span for category in sorted(KERNELS) for span in trace.of(category)):
        seconds = kernel.duration_us / MICROSECONDS
        if COLLECTIVE.search(kernel.name):
            found.collectives += seconds
            continue
        operator = _launcher(kernel, launches, operators)
        number = kernel.whole(EXTERNAL)
        found.add(work_of[operator] if operator else external.get(number) if number is not None else None, seconds)
    return found


def _launcher(kernel: Span, launches: dict[int | None, Span], operators: Windows) -> Span | None:
    """The outermost operator in which the kernel's launch lies."""
    number = kernel.whole(CORRELATION)
    launch = launches.get(number) if number is not None else None
    return operators.at(launch.thread, launch.start_us) if launch else None
