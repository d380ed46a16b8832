"""`StageParts` of all intervals of the topological order at once, as numpy arrays.

Entry [i, j] is the stage of layers i .. j-1; arrays have shape (n + 1, n + 1) and hold zeros where
j <= i. The sums are those of `planner.costs.parts.parts_of`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.compute import LayerPrices
from planner.costs.parts import StageParts, carries_gradient
from planner.graph import GraphIndex
from planner.problem import Problem

Array = NDArray[Any]


def interval_parts(problem: Problem, prices: LayerPrices, samples: int) -> StageParts:
    """Parts of every interval. O(n^2) per tensor and per sum."""
    index = problem.index
    layers = index.layers
    repeated, repeated_trainable, outside = _tied(problem)
    received, received_back, sent, sent_back, kept = _tensor_sums(index)
    return StageParts(
        forward_s=_sums(prices.forward_s),
        backward_s=_sums(prices.backward_s),
        optimizer_s=_sums(prices.optimizer_s),
        parameter_bytes=_int_sums([x.parameter_bytes for x in layers]) - repeated,
        replicated_bytes=_int_sums([x.replicated_parameter_bytes for x in layers]),
        trainable_bytes=_int_sums([x.parameter_bytes * x.trainable for x in layers]) - repeated_trainable,
        trainable_replicated_bytes=_int_sums([x.replicated_parameter_bytes * x.trainable for x in layers]),
        tied_bytes=outside,
        collective_bytes=samples * _int_sums([x.tensor_collective_bytes_per_sample for x in layers]),
        collective_backward_bytes=samples
        * _int_sums(
            [x.tensor_collective_bytes_per_sample * r for x, r in zip(layers, index.runs_backward, strict=True)]
        ),
        activation_bytes=_int_sums(prices.activation_bytes),
        kept_input_bytes=samples * kept,
        largest_activation_bytes=_running_max(prices.activation_bytes),
        workspace_bytes=_running_max(prices.workspace_bytes),
        receive_bytes=samples * received,
        receive_gradient_bytes=samples * sent_back,
        send_bytes=samples * sent,
        send_gradient_bytes=samples * received_back,
        runs_backward=_int_sums([int(flag) for flag in index.runs_backward]) > 0,
    )


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


def _sums(values: Sequence[float]) -> Array:
    """Sums of every interval by running totals from each start: no cancellation, so equal sums stay equal."""
    n = len(values)
    out = np.zeros((n + 1, n + 1))
    for start in range(n):
        out[start, start + 1 :] = np.cumsum(values[start:])
    return out


def _int_sums(values: Sequence[int]) -> Array:
    total = np.concatenate(([0], np.cumsum(np.asarray(values, dtype=np.int64))))
    sums: Array = np.maximum(total[None, :] - total[:, None], 0)
    return sums


def _running_max(values: Sequence[int]) -> Array:
    n = len(values)
    out = np.zeros((n + 1, n + 1), dtype=np.int64)
    for start in range(n):
        out[start, start + 1 :] = np.maximum.accumulate(np.asarray(values[start:], dtype=np.int64))
    return out


def _any_in(n: int, positions: Sequence[int]) -> Array:
    """[i, j]: whether one of the positions lies in i .. j-1."""
    following = np.full(n + 1, n + 1)
    for position in sorted(positions, reverse=True):
        following[: position + 1] = position
    return following[:, None] < np.arange(n + 1)[None, :]


def _all_in(n: int, positions: Sequence[int]) -> Array:
    at = np.arange(n + 1)
    return (at[:, None] <= min(positions)) & (max(positions) < at[None, :])


def _count_in(n: int, positions: Sequence[int]) -> Array:
    marks = np.zeros(n, dtype=np.int64)
    marks[list(positions)] = 1
    return _int_sums(list(marks))


def _tensor_sums(index: GraphIndex) -> tuple[Array, Array, Array, Array, Array]:
    """Bytes per sample: received, received with gradient, sent, sent with gradient, read by layers with backward."""
    n = len(index)
    sums = [np.zeros((n + 1, n + 1), dtype=np.int64) for _ in range(5)]
    for number, tensor in enumerate(index.tensors):
        size, back = tensor.bytes_per_sample, carries_gradient(index, number)
        made = _any_in(n, [tensor.source])
        read = _any_in(n, tensor.targets)
        received, sent = read & ~made, made & ~_all_in(n, [tensor.source, *tensor.targets])
        readers = [t for t in tensor.targets if index.runs_backward[t]]
        kept = _any_in(n, readers) if readers else np.zeros_like(read)
        for total, mask in zip(sums, (received, received & back, sent, sent & back, kept), strict=True):
            total += size * mask
    return sums[0], sums[1], sums[2], sums[3], sums[4]


def _tied(problem: Problem) -> tuple[Array, Array, Array]:
    index, n = problem.index, len(problem.index)
    repeated, repeated_trainable, outside = (np.zeros((n + 1, n + 1), dtype=np.int64) for _ in range(3))
    for tied in problem.graph.tied:
        positions = [index.position[name] for name in tied.layers]
        trainable = [i for i in positions if index.layers[i].trainable]
        here, here_trainable = _count_in(n, positions), _count_in(n, trainable)
        repeated += tied.parameter_bytes * np.maximum(here - 1, 0)
        repeated_trainable += tied.parameter_bytes * np.maximum(here_trainable - 1, 0)
        partly = (here_trainable > 0) & (here_trainable < len(trainable))
        outside += tied.parameter_bytes * partly
    return repeated, repeated_trainable, outside
