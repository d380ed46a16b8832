"""Seconds per layer in whole chains, beside a reference workload that tells the host's drift from the model's."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from profiles.measuring.chain import LayerChain, Phase
from profiles.measuring.reference import ReferenceWorkload
from profiles.measuring.stopwatch import Stopwatch

WARM_UP_CHAINS = 3
"""The first forward is 1.3 to 5 times dearer; after three chains it is not (our study of runs, error source 6)."""
CHAINS_PER_SPLIT = 4
"""After so many ordinary chains comes a split one."""
DRIFT_LIMIT = 0.03
"""Medians of the two halves that differ by more say that the host changed under the measurement."""


@dataclass(slots=True)
class Timings:
    """Observer: when every step began and ended, in the order of the chains."""

    stopwatch: Stopwatch
    marks: dict[tuple[str, Phase], list[tuple[Any, Any]]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        start = self.stopwatch.mark()
        yield
        self.marks[layer, phase].append((start, self.stopwatch.mark()))

    def seconds(self, layer: str, phase: Phase) -> list[float]:
        """Of each chain; none where the layer has no such step (backward of layers before any parameter)."""
        return [self.stopwatch.seconds(start, end) for start, end in self.marks.get((layer, phase), ())]

    def median(self, layer: str, phase: Phase) -> float:
        """Median seconds of a step; 0 where the layer has none."""
        return median(self.seconds(layer, phase))

    def spread(self, layer: str) -> float:
        """Distance between the quartiles of the layer's forward and backward seconds, over their median."""
        return spread(self._passes((layer,)))

    def chains(self) -> list[float]:
        """Seconds of every ordinary chain: the sum of its steps."""
        return self._passes(dict.fromkeys(layer for layer, _ in self.marks))

    def _passes(self, layers: Iterable[str]) -> list[float]:
        steps = (self.seconds(layer, phase) for layer in layers for phase in (Phase.FORWARD, Phase.BACKWARD))
        return [sum(step) for step in zip(*(step for step in steps if step), strict=True)]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the chains at one microbatch size gave: seconds per layer, and of the reference workload beside them."""

    timings: Timings
    reference_s: list[float]

    def drift(self) -> float:
        """How far the second half is from the first, as a fraction: of the chains or of the reference workload."""
        return max(drift(self.timings.chains()), drift(self.reference_s))


def median(samples: Sequence[float]) -> float:
    """Of no samples: 0."""
    return statistics.median(samples) if samples else 0.0


def spread(samples: Sequence[float]) -> float:
    """Distance between the quartiles over the median; 0 for fewer than two samples or a median of 0."""
    if len(samples) < 2 or not median(samples):
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / median(samples)


def drift(samples: Sequence[float]) -> float:
    """How far the median of the second half is from that of the first, as a fraction."""
    half = len(samples) // 2
    first, second = median(samples[:half]), median(samples[half:])
    return abs(second / first - 1) if first > 0 else 0.0


def time_chains(chain: LayerChain, repeats: int, stopwatch: Stopwatch, tick: Callable[[], None]) -> Measured:
    """Times `repeats` chains after `WARM_UP_CHAINS` that are thrown away; calls `tick` after each of them.

    After every fourth chain a split one follows, and before each the reference workload. Gradients accumulate over the
    chains, as over the microbatches of an iteration.
    """
    timings = Timings(stopwatch)
    reference = ReferenceWorkload(next(iter(chain.program.module.parameters())).device, stopwatch)
    for number in range(WARM_UP_CHAINS):
        reference.run()
        chain.run(Timings(stopwatch), split=number == 0)
        tick()
    reference.marks.clear()
    for number in range(repeats):
        reference.run()
        chain.run(timings)
        if number % CHAINS_PER_SPLIT == CHAINS_PER_SPLIT - 1:
            chain.run(_SplitOnly(timings), split=True)
        tick()
    return Measured(timings, reference.seconds)


@dataclass(slots=True)
class _SplitOnly:
    """Observer of split chains: their forward passes and losses are like all others, and not counted twice."""

    timings: Timings

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        if phase in (Phase.FORWARD, Phase.BACKWARD):
            yield
            return
        with self.timings(layer, phase):
            yield


def time_optimizer(chain: LayerChain, repeats: int, stopwatch: Stopwatch) -> dict[str, float]:
    """Layer -> median seconds of an AdamW step of its parameters (learning rate 0: the weights stay)."""
    seconds: dict[str, float] = {}
    for layer in chain.layer_ids:
        parameters = [p for p in chain.parameters(layer) if p.grad is not None]
        if parameters:
            seconds[layer] = _time_steps(torch.optim.AdamW(parameters, lr=0.0), repeats, stopwatch)
    return seconds


def _time_steps(optimizer: torch.optim.AdamW, repeats: int, stopwatch: Stopwatch) -> float:
    optimizer.step()  # makes the state
    marks = [stopwatch.mark()]
    for _ in range(repeats):
        optimizer.step()
        marks.append(stopwatch.mark())
    return median([stopwatch.seconds(start, end) for start, end in itertools.pairwise(marks)])
