"""`blocking` for one kind of device, with overflow streaming as an option (Archer et al. 2024).

    seconds(S) = work(S) + cut(S) + overflow(S)
    overflow(S) = max(0, weights(S) + peak(S) - M) / B       weights beyond the fast memory M are streamed at B

cut(S) are the transfer seconds of all tensors that some, but not all, of S and the rest make or read: each is paid once
at its maker's stage and once at every stage that reads it. peak(S) is the largest sum of tensors alive at a time when
the stage runs its layers in order: what a layer reads and makes, and what later layers of the stage still read (our
reading of the paper's peak_act). Without streaming, S must fit into M.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.costs.model import CostModel
from planner.costs.parts import carries_gradient
from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.hierarchy import hierarchy
from planner.errors import InputError
from planner.ideals import Groups, bits, group_layers, set_of
from planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTensor:
    """A tensor of `num_bytes`, made and read by layers (numbers) of the groups in `ends`; a stage that holds some of
    `ends` but not all pays `cost_s`."""

    maker: int
    readers: tuple[int, ...]
    ends: int
    num_bytes: float
    cost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingCost:
    """The model for one graph. `work_s` per layer group, `weight_bytes` per layer; `streaming_bytes_per_s` None refuses
    stages that do not fit."""

    groups: Groups
    work_s: Sequence[float]
    weight_bytes: Sequence[float]
    tensors: tuple[SharedTensor, ...]
    memory_bytes: float = math.inf
    streaming_bytes_per_s: float | None = None
    name: str = "blocking"

    def seconds(self, stage: StageShape) -> float:
        """Seconds per microbatch on one device."""
        work = math.fsum(self.work_s[g] for g in bits(stage.layers))
        cut = math.fsum(t.cost_s for t in self.tensors if t.ends & stage.layers and t.ends & ~stage.layers)
        return work + cut + self.overflow_s(stage.layers)

    def overflow_s(self, layers: int) -> float:
        """Seconds of streaming; infinite where the stage does not fit and nothing is streamed."""
        if math.isinf(self.memory_bytes):
            return 0.0
        inside = self.groups.positions(layers)
        excess = math.fsum(self.weight_bytes[i] for i in inside) + self._peak_bytes(inside) - self.memory_bytes
        if excess <= 0:
            return 0.0
        return excess / self.streaming_bytes_per_s if self.streaming_bytes_per_s else math.inf

    def _peak_bytes(self, inside: Sequence[int]) -> float:
        """Largest sum of live tensors: each from its maker (or first reader) in the stage to its last reader there."""
        place = {layer: number for number, layer in enumerate(inside)}
        change = [0.0] * (len(inside) + 1)
        for tensor in self.tensors:
            used = [place[layer] for layer in (tensor.maker, *tensor.readers) if layer in place]
            if used:
                change[min(used)] += tensor.num_bytes
                change[max(used) + 1] -= tensor.num_bytes
        alive, peak = 0.0, 0.0
        for step in change:
            alive += step
            peak = max(peak, alive)
        return peak


def blocking_cost(
    problem: Problem,
    costs: CostModel,
    microbatch_size: int,
    *,
    memory_bytes: float = math.inf,
    streaming_bytes_per_s: float | None = None,
) -> BlockingCost:
    """The model of a problem whose first device type all devices are taken to have, with one bandwidth between any two.

    InputError where bandwidths differ. Latency is left out.
    """
    levels = hierarchy(problem)
    if levels is None or len(levels) > 1:
        raise InputError("the blocking search model needs one bandwidth between all devices", pointer="/cluster/links")
    index, groups = problem.index, group_layers(problem.index)
    prices = costs.layer_prices(problem.cluster.devices[0].type, microbatch_size, 1)
    tensors = []
    for number, tensor in enumerate(index.tensors):
        passes = 2 if problem.training and carries_gradient(index, number) else 1
        num_bytes = float(microbatch_size * tensor.bytes_per_sample)
        tensors.append(
            SharedTensor(
                maker=tensor.source,
                readers=tensor.targets,
                ends=set_of({groups.of_layer[i] for i in (tensor.source, *tensor.targets)}),
                num_bytes=num_bytes,
                cost_s=passes * num_bytes / levels[0].bandwidth_bytes_per_s,
            )
        )
    return BlockingCost(
        groups=groups,
        work_s=[sum(prices.forward_s[i] + prices.backward_s[i] for i in members) for members in groups.layers],
        weight_bytes=[float(layer.parameter_bytes) for layer in index.layers],
        tensors=tuple(tensors),
        memory_bytes=memory_bytes,
        streaming_bytes_per_s=streaming_bytes_per_s,
    )
