"""Clocks for layers: CPU seconds of this thread, or events in a GPU's stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Marks moments of the work; what lies between two of them is read off when the work is done."""

    method: str
    """What is read, for the profile's provenance."""

    def mark(self) -> Any:
        """This moment."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks. May wait for the device."""


@dataclass(slots=True)
class CpuStopwatch:
    """CPU seconds of this thread.

    Autograd runs in the calling thread on a CPU, so that they are complete, and another process on the same core does
    not count: a product took 19.1 ms alone and 19.2 ms beside one, where the wall clock said 26.1 (our study of runs).
    """

    clock: Callable[[], float] = time.thread_time
    method: str = "thread CPU time, 1 thread"

    def mark(self) -> float:
        return self.clock()

    def seconds(self, start: float, end: float) -> float:
        return end - start


@dataclass(slots=True)
class CudaStopwatch:
    """Seconds between events in the current stream of a GPU. Marks do not wait, so that the stream stays busy.

    Kernels of autograd run in the stream of their forward pass, which is the one that is marked.
    """

    device: torch.device
    method: str = "CUDA events"

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def stopwatch_of(device: torch.device) -> Stopwatch:
    """The clock that fits a device."""
    return CudaStopwatch(device) if device.type == "cuda" else CpuStopwatch()
