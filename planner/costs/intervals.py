"""`StageParts` of all intervals of the topological order at once, as numpy arrays.

Entry [i, j] is the stage of layers i .. j-1; arrays have shape (n + 1, n + 1) and hold zeros where
j <= i. The sums are those of `planner.costs.parts.parts_of`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.compute import LayerPrices
from planner.costs.parts import StageParts, carries_gradient
from planner.graph import GraphIndex
from planner.problem import Problem

Array = NDArray[Any]


class Intervals:
    """Parts of every interval of one problem. What no price changes is summed once: prices and samples may follow."""

    def __init__(self, problem: Problem) -> None:
        self.index = problem.index
        layers, runs = self.index.layers, self.index.runs_backward
        tied = _Tied(problem)
        self._outside = tied.outside
        self._tensors = tensor_sums(self.index)
        self._parameters = _int_sums([x.parameter_bytes for x in layers]) - tied.repeated
        self._replicated = _int_sums([x.replicated_parameter_bytes for x in layers]) - tied.replicated
        self._trainable = _int_sums([x.parameter_bytes * x.trainable for x in layers]) - tied.repeated_trainable
        self._trainable_replicated = (
            _int_sums([x.replicated_parameter_bytes * x.trainable for x in layers]) - tied.replicated_trainable
        )
        self._experts = _int_sums([x.expert_parameter_bytes for x in layers]) - tied.experts
        self._largest_dense = _running_max([x.parameter_bytes - x.expert_parameter_bytes for x in layers])
        self._largest_experts = _running_max([x.expert_parameter_bytes for x in layers])
        self._trainable_experts = (
            _int_sums([x.expert_parameter_bytes * x.trainable for x in layers]) - tied.experts_trainable
        )
        self._collectives = self._both_passes([x.tensor_collective_bytes_per_sample for x in layers])
        self._dispatch = self._both_passes([x.expert_dispatch_bytes_per_sample for x in layers])
        self._context = self._both_passes([x.context_bytes_per_sample for x in layers])
        self._runs_backward = _int_sums([int(flag) for flag in runs]) > 0

    def parts(self, prices: LayerPrices, samples: int) -> StageParts:
        """With these prices of the layers, at a microbatch size. O(n^2)."""
        tensors, activations = self._tensors, _int_sums(prices.activation_bytes)
        saved = [a - b for a, b in zip(prices.activation_bytes, prices.selective_bytes, strict=True)]
        return StageParts(
            forward_s=_sums(prices.forward_s),
            backward_s=_sums(prices.backward_s),
            optimizer_s=_sums(prices.optimizer_s),
            parameter_bytes=self._parameters,
            replicated_bytes=self._replicated,
            trainable_bytes=self._trainable,
            trainable_replicated_bytes=self._trainable_replicated,
            tied_bytes=self._outside,
            collective_bytes=samples * self._collectives[0],
            collective_backward_bytes=samples * self._collectives[1],
            activation_bytes=activations,
            kept_input_bytes=samples * tensors.kept,
            largest_activation_bytes=_running_max(prices.activation_bytes),
            workspace_bytes=_running_max(prices.workspace_bytes),
            receive_bytes=samples * tensors.received,
            receive_gradient_bytes=samples * tensors.sent_back,
            send_bytes=samples * tensors.sent,
            send_gradient_bytes=samples * tensors.received_back,
            runs_backward=self._runs_backward,
            selective_bytes=activations - _int_sums(saved) if any(saved) else activations,
            selective_s=_sums(prices.selective_s),
            largest_selective_bytes=_running_max(saved),
            expert_bytes=self._experts,
            trainable_expert_bytes=self._trainable_experts,
            largest_dense_bytes=self._largest_dense,
            largest_expert_bytes=self._largest_experts,
            expert_optimizer_s=_sums(prices.expert_optimizer_s),
            dispatch_bytes=samples * self._dispatch[0],
            dispatch_backward_bytes=samples * self._dispatch[1],
            context_bytes=samples * self._context[0],
            context_backward_bytes=samples * self._context[1],
            weight_pass_bytes=_int_sums(prices.weight_pass_bytes),
            sends_back=tensors.sends_back,
        )

    def _both_passes(self, volumes: Sequence[int]) -> tuple[Array, Array]:
        """Sums of the layers' volumes, and of those of the layers that run a backward pass."""
        runs = self.index.runs_backward
        return _int_sums(volumes), _int_sums([size * r for size, r in zip(volumes, runs, strict=True)])


def interval_parts(problem: Problem, prices: LayerPrices, samples: int) -> StageParts:
    """Parts of every interval, for one use. O(n^2) per sum."""
    return Intervals(problem).parts(prices, samples)


def cut_bytes(index: GraphIndex) -> tuple[Array, Array]:
    """Per boundary j (before layer j): bytes per sample of the tensors alive across it, forward and backward."""
    n = len(index)
    forward, backward = np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    for number, tensor in enumerate(index.tensors):
        alive = slice(tensor.source + 1, max(tensor.targets) + 1)
        forward[alive] += tensor.bytes_per_sample
        if carries_gradient(index, number):
            backward[alive] += tensor.bytes_per_sample
    return forward, backward


def _from_each_start(values: Sequence[float], dtype: type) -> Array:
    """Row i: the values, with zeros before i. Entry [i, j] is value j-1, so that a row's totals end before layer j."""
    n = len(values)
    rows: Array = np.zeros((n + 1, n + 1), dtype=dtype)
    if any(values):
        rows[:, 1:] = np.triu(np.broadcast_to(np.asarray(values, dtype=dtype), (n + 1, n)))
    return rows


def _sums(values: Sequence[float]) -> Array:
    """Sums of every interval by running totals from each start: no cancellation, so equal sums stay equal."""
    rows = _from_each_start(values, float)
    return np.cumsum(rows, axis=1, out=rows)


def _int_sums(values: Sequence[int]) -> Array:
    total = np.concatenate(([0], np.cumsum(np.asarray(values, dtype=np.int64))))
    sums: Array = np.triu(total[None, :] - total[:, None])
    return sums


def _running_max(values: Sequence[int]) -> Array:
    rows = _from_each_start(values, np.int64)
    found: Array = np.maximum.accumulate(rows, axis=1, out=rows)
    return found


def _count_in(n: int, positions: Sequence[int]) -> Array:
    marks = np.zeros(n, dtype=np.int64)
    marks[list(positions)] = 1
    return _int_sums(list(marks))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSums:
    """Bytes per sample of every interval: received and sent, the same of tensors with a gradient, read by layers that
    run a backward pass. And whether a tensor with a gradient is received."""

    received: Array
    received_back: Array
    sent: Array
    sent_back: Array
    kept: Array
    sends_back: Array


def tensor_sums(index: GraphIndex) -> TensorSums:
    """O(n^2) and O(1) per tensor and reader.

    The intervals that receive a tensor are those that begin after its maker and hold a reader: for the readers
    t_1 < t_2 < ... one rectangle each, t_(k-1) < i <= t_k < j. Those that send it hold its maker and end before its
    last reader. So each is a few corners, summed up at the end.
    """
    received, received_back, sent, sent_back, kept, returned = (_Corners(len(index)) for _ in range(6))
    for number, tensor in enumerate(index.tensors):
        size, source = tensor.bytes_per_sample, tensor.source
        readers = [t for t in tensor.targets if index.runs_backward[t]]
        both_ways = carries_gradient(index, number)
        for sums in (received, received_back)[: 1 + both_ways]:
            sums.add_first_of(tensor.targets, source, size)
        for sums in (sent, sent_back)[: 1 + both_ways]:
            sums.add(0, source, source + 1, max(tensor.targets), size)
        kept.add_first_of(readers, -1, size)
        returned.add_first_of(tensor.targets, source, int(both_ways))
    return TensorSums(
        received=received.sums(),
        received_back=received_back.sums(),
        sent=sent.sums(),
        sent_back=sent_back.sums(),
        kept=kept.sums(),
        sends_back=returned.sums() > 0,
    )


class _Corners:
    """Adds numbers to rectangles of a table of intervals, by their corners."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.corners = np.zeros((n + 2, n + 2), dtype=np.int64)

    def add(self, first_i: int, last_i: int, first_j: int, last_j: int, size: int) -> None:
        """`size` to all [i, j] with first_i <= i <= last_i and first_j <= j <= last_j."""
        self.corners[first_i, first_j] += size
        self.corners[last_i + 1, first_j] -= size
        self.corners[first_i, last_j + 1] -= size
        self.corners[last_i + 1, last_j + 1] += size

    def add_first_of(self, positions: Sequence[int], after: int, size: int) -> None:
        """`size` to every interval that begins behind `after` and holds one of the (ascending) positions."""
        for position in positions:
            self.add(after + 1, position, position + 1, self.n, size)
            after = position

    def sums(self) -> Array:
        """The table, of shape (n + 1, n + 1)."""
        totals = self.corners.cumsum(axis=0)
        return totals.cumsum(axis=1, out=totals)[: self.n + 1, : self.n + 1]


class _Tied:
    """Shared bytes counted too often in every interval, and those that layers outside hold as well."""

    def __init__(self, problem: Problem) -> None:
        index, n = problem.index, len(problem.index)
        empty = np.zeros((n + 1, n + 1), dtype=np.int64)
        self.repeated = self.repeated_trainable = self.outside = empty
        self.replicated = self.replicated_trainable = self.experts = self.experts_trainable = empty
        for tied in problem.graph.tied:
            positions = [index.position[name] for name in tied.layers]
            trainable = [i for i in positions if index.layers[i].trainable]
            here, here_trainable = _count_in(n, positions), _count_in(n, trainable)
            again, again_trainable = np.maximum(here - 1, 0), np.maximum(here_trainable - 1, 0)
            self.repeated = self.repeated + tied.parameter_bytes * again
            self.repeated_trainable = self.repeated_trainable + tied.parameter_bytes * again_trainable
            self.replicated = self.replicated + tied.replicated_parameter_bytes * again
            self.replicated_trainable = self.replicated_trainable + tied.replicated_parameter_bytes * again_trainable
            self.experts = self.experts + tied.expert_parameter_bytes * again
            self.experts_trainable = self.experts_trainable + tied.expert_parameter_bytes * again_trainable
            partly = (here_trainable > 0) & (here_trainable < len(trainable))
            self.outside = self.outside + tied.parameter_bytes * partly
