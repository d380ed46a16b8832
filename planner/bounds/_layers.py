"""The least seconds of every layer, over device types and replication degrees: what the simple bounds share."""

from __future__ import annotations

from dataclasses import dataclass

from planner.bounds.base import BoundQuery
from planner.costs.parts import carries_gradient
from planner.workload import ReplicaMode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSeconds:
    """Per layer, each the minimum over what the query allows.

    `pass_s`: one microbatch through the layer, `forward_s` its forward alone. `group_s`: device-group seconds that one
    microbatch takes. `period_s`: seconds between microbatches at the layer's stage, if the layer were alone there.
    """

    pass_s: list[float]
    forward_s: list[float]
    group_s: list[float]
    period_s: list[float]


def least_seconds(query: BoundQuery, microbatch_size: int, num_microbatches: int) -> LeastSeconds:
    """O(layers x degrees x device types) the first time."""
    batch = (microbatch_size, num_microbatches)
    return query.remember("least", batch, lambda: _least_seconds(query, microbatch_size, num_microbatches))


def _least_seconds(query: BoundQuery, microbatch_size: int, num_microbatches: int) -> LeastSeconds:
    n = len(query.problem.index)
    passes, forwards, groups, periods = ([float("inf")] * n for _ in range(4))
    split = query.replica_mode is ReplicaMode.SPLIT
    for degree in query.degrees(microbatch_size, num_microbatches):
        for forward, backward in query.both_passes(microbatch_size, degree):
            for i, (there, back) in enumerate(zip(forward, backward, strict=True)):
                value = there + back
                passes[i], forwards[i] = min(passes[i], value), min(forwards[i], there)
                groups[i] = min(groups[i], value * degree if split else value)
                periods[i] = min(periods[i], value if split else value / degree)
    return LeastSeconds(pass_s=passes, forward_s=forwards, group_s=groups, period_s=periods)


def longest_path_before(query: BoundQuery, seconds: list[float]) -> list[float]:
    """Per layer, the longest path of `seconds` that ends just before it.

    In training only tensors through which a gradient returns count: the backward of their maker waits for the reader's.
    """
    index, training = query.problem.index, query.problem.training is not None
    before = [0.0] * len(seconds)
    for number, tensor in enumerate(index.tensors):  # in order of their makers
        if training and not carries_gradient(index, number):
            continue
        reached = before[tensor.source] + seconds[tensor.source]
        for target in tensor.targets:
            before[target] = max(before[target], reached)
    return before
