"""Bytes in a trace, where it was recorded with `record_shapes` and `profile_memory`."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator

from planner.checks import MAX_BYTES
from profiles.importers._trace_events import MEMORY, Span, Trace, Windows
from profiles.importers._trace_layers import Layers, Role, Work

ACCUMULATE = "torch::autograd::AccumulateGrad"
DIMENSIONS, TYPES, ADDRESS, BYTES, DEVICE = "Input Dims", "Input type", "Addr", "Bytes", "Device Type"
CPU_DEVICE = 0
DTYPES = {
    "float": ("float32", 4),
    "double": ("float64", 8),
    "c10::Half": ("float16", 2),
    "c10::BFloat16": ("bfloat16", 2),
}
"""Types as the profiler writes them: our dtype and bytes."""


def parameter_bytes(work: Iterable[Work]) -> dict[str, dict[str, int]]:
    """Layer -> dtype -> bytes of the gradients that its backward passes accumulate, all passes together."""
    found: dict[str, dict[str, int]] = {}
    for item in work:
        for span in item.node.all() if item.role is Role.BACKWARD else ():
            if span.name == ACCUMULATE and (tensor := _first_input(span)):
                of_layer = found.setdefault(item.layer, {})
                of_layer[tensor[0]] = of_layer.get(tensor[0], 0) + tensor[1]
    return found


def output_bytes(work: Iterable[Work]) -> dict[str, int]:
    """Layer -> bytes of its output: of the gradient that its first backward node is given."""
    found: dict[str, int] = {}
    for item in work:
        if item.role is Role.BACKWARD and item.layer not in found:
            tensors = (_first_input(span) for span in item.node.all() if span is not item.node.span)
            tensor = next((each for each in tensors if each), None)
            if tensor:
                found[item.layer] = tensor[1]
    return found


def kept_bytes(trace: Trace, layers: Layers, on_cpu: bool) -> dict[str, int]:
    """Layer -> bytes allocated in its forward passes and still held when the next backward work began, all together.

    Without a backward pass nothing counts as kept.
    """
    name = {span: layer for layer, span in layers.windows}
    windows = Windows(span for _, span in layers.windows)
    backward_us = [work.node.span.start_us for work in layers.work if work.role is Role.BACKWARD]
    found: dict[str, int] = {}
    for event, freed_us in _allocations(trace.memory, on_cpu):
        window = windows.at(event.thread, event.start_us)
        if window is not None and _is_kept(freed_us, window, backward_us):
            found[name[window]] = found.get(name[window], 0) + (event.whole(BYTES) or 0)
    return {layer: min(count, MAX_BYTES) for layer, count in found.items()}


def _is_kept(freed_us: float, window: Span, backward_us: list[float]) -> bool:
    """Whether it was freed after the first backward work behind the window began."""
    number = bisect.bisect_left(backward_us, window.end_us)
    return number < len(backward_us) and freed_us > backward_us[number]


def _allocations(events: Iterable[Span], on_cpu: bool) -> Iterator[tuple[Span, float]]:
    """Allocations on the device, each with the time when it was freed (never: infinity)."""
    held: dict[int, Span] = {}
    for event in events:
        address, count = event.whole(ADDRESS), event.whole(BYTES)
        if event.name != MEMORY or address is None or not count:
            continue
        if (event.whole(DEVICE) == CPU_DEVICE) != on_cpu:
            continue
        if count > 0:
            held[address] = event
        elif address in held:
            yield held.pop(address), event.start_us
    for event in held.values():
        yield event, math.inf


def _first_input(span: Span) -> tuple[str, int] | None:
    """Dtype and bytes of the first input, where its shape and type were recorded."""
    shapes, types = span.args.get(DIMENSIONS), span.args.get(TYPES)
    if not isinstance(shapes, list) or not isinstance(types, list) or not shapes or not types:
        return None
    dtype = DTYPES.get(types[0]) if isinstance(types[0], str) else None
    shape = shapes[0]
    if dtype is None or not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape):
        return None
    return dtype[0], min(math.prod(shape) * dtype[1], MAX_BYTES)
