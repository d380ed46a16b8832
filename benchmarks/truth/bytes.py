"""What the allocator gives and takes back in every pass of a layer: net, and most at once beyond what it found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate

from torch.profiler import ProfilerActivity, profile

from benchmarks.truth.passes import PassBytes
from planner.runtime.memory import allocations
from planner.runtime.recorder import Recorder


@dataclass(slots=True)
class BytesRecorder(Recorder):
    """A recorder that notes bytes by label (`2F0`) instead of seconds."""

    bytes_of: dict[str, PassBytes] = field(default_factory=dict)

    @contextmanager
    def note(self, label: str, category: str, kind: str) -> Iterator[None]:
        """Run what is inside under torch's memory profiler."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
            yield
        sizes = allocations(trace)
        self.bytes_of[label] = PassBytes(net=sum(sizes), peak=max(accumulate(sizes, initial=0)))
