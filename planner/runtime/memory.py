"""Peak memory of one step at allocator level: exact where resident set sizes are 16-65 % off."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

ALLOCATION_EVENT = "[memory]"
"""Name of the profiler's record of one allocation (positive bytes) or release (negative bytes)."""


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that `work` holds at once beyond what is allocated when it starts."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        work()
    return max(accumulate(allocations(trace), initial=0))


def allocations(trace: profile) -> list[int]:
    """The bytes of every allocation (positive) and release (negative) of a finished trace, in order of time."""
    assert trace.profiler is not None
    assert trace.profiler.kineto_results is not None
    events: list[Any] = trace.profiler.kineto_results.events()
    recorded = [event for event in events if event.name() == ALLOCATION_EVENT]
    return [event.nbytes() for event in sorted(recorded, key=lambda event: int(event.start_ns()))]


def resident_bytes(module: nn.Module, held: Iterable[torch.Tensor]) -> int:
    """Bytes that stay between steps: parameters, buffers, and what the optimizer holds; each storage once."""
    tensors = [*module.parameters(), *module.buffers(), *held]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
