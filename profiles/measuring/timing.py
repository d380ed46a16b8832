"""Seconds per layer on this machine's CPU, in whole chains."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from profiles.measuring.chain import LayerChain, Phase

WARM_UP_CHAINS = 3
"""The first forward is 1.3 to 5 times dearer; after three chains it is not (our study of runs, error source 6)."""
DRIFT_LIMIT = 0.03
"""Medians of the two halves that differ by more say that the host changed under the measurement."""

Clock = Callable[[], float]


@dataclass(slots=True)
class Timings:
    """Observer: seconds of every step, in the order of the chains. Thread CPU time by default.

    CPU autograd runs in the calling thread, so that thread CPU time is complete, and other processes do not disturb it.
    """

    clock: Clock = time.thread_time
    seconds: dict[tuple[str, Phase], list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        start = self.clock()
        yield
        self.seconds[layer, phase].append(self.clock() - start)

    def median(self, layer: str, phase: Phase) -> float:
        """Median seconds of a step; 0 where the layer has no such step (backward of layers before any parameter)."""
        samples = self.seconds.get((layer, phase))
        return statistics.median(samples) if samples else 0.0

    def drift(self) -> float:
        """How far the median chain of the second half is from that of the first, as a fraction."""
        chains = [sum(steps) for steps in zip(*self.seconds.values(), strict=True)]
        half = len(chains) // 2
        first, second = statistics.median(chains[:half]), statistics.median(chains[half:])
        return abs(second / first - 1) if first > 0 else 0.0


def time_chains(chain: LayerChain, repeats: int, tick: Callable[[], None], clock: Clock = time.thread_time) -> Timings:
    """Timings of `repeats` chains after `WARM_UP_CHAINS` that are thrown away; calls `tick` after each chain.

    Gradients accumulate over the chains, as over the microbatches of an iteration.
    """
    for _ in range(WARM_UP_CHAINS):
        chain.run(Timings(clock))
        tick()
    timings = Timings(clock)
    for _ in range(repeats):
        chain.run(timings)
        tick()
    return timings


def time_optimizer(chain: LayerChain, repeats: int, clock: Clock = time.thread_time) -> dict[str, float]:
    """Layer -> median seconds of an AdamW step of its parameters (learning rate 0: the weights stay)."""
    seconds: dict[str, float] = {}
    for layer in chain.layer_ids:
        parameters = [p for p in chain.parameters(layer) if p.grad is not None]
        if parameters:
            seconds[layer] = _time_steps(torch.optim.AdamW(parameters, lr=0.0), repeats, clock)
    return seconds


def _time_steps(optimizer: torch.optim.AdamW, repeats: int, clock: Clock) -> float:
    optimizer.step()  # makes the state
    samples = []
    for _ in range(repeats):
        start = clock()
        optimizer.step()
        samples.append(clock() - start)
    return statistics.median(samples)
