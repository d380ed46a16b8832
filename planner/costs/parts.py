"""`StageParts`: the sums over a stage's layers from which every price is made.

The same formulas price one stage (numbers) and all intervals of an order at once (numpy arrays, see
`planner.costs.intervals`): `StageParts` holds either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from planner.costs.compute import LayerPrices
from planner.graph import GraphIndex
from planner.problem import Problem

Number = Any
"""int or float, or a numpy array of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """Sums over the layers of a stage, for one pass of one device group; parameters before any division.

    Parameter sums count tied parameters once. `kept_input_bytes` are the distinct tensors that the layers read (what
    full recomputation keeps), `largest_activation_bytes` the largest single layer's activations (what it recomputes
    at a time). `receive_bytes` are the distinct tensors read from outside, `send_bytes` the distinct tensors read by
    others, per microbatch of the whole stage; `*_gradient_*` the same for gradients in the backward pass.
    `tied_bytes` are trainable parameters of which another stage holds a trainable copy too.

    `selective_bytes` is what selective recomputation keeps of `activation_bytes`, `selective_s` its recomputation,
    `largest_selective_bytes` what the layer that saves most brings back while it is recomputed. `expert_*` are the
    parts of the parameters and of the optimizer step that an expert degree divides; `largest_dense_bytes` and
    `largest_expert_bytes` the most parameters of one layer (what ZeRO 3 gathers at a time). `dispatch_*` (rows sent to
    experts) and `context_*` (keys and values) are per microbatch of the whole stage, like `collective_*`.
    `weight_pass_bytes` are what I adds to the kept bytes and W gives back, where the stage sends gradients to stages
    before it (`sends_back`).
    """

    forward_s: Number
    backward_s: Number
    optimizer_s: Number
    parameter_bytes: Number
    replicated_bytes: Number
    trainable_bytes: Number
    trainable_replicated_bytes: Number
    tied_bytes: Number
    collective_bytes: Number
    collective_backward_bytes: Number
    activation_bytes: Number
    kept_input_bytes: Number
    largest_activation_bytes: Number
    workspace_bytes: Number
    receive_bytes: Number
    receive_gradient_bytes: Number
    send_bytes: Number
    send_gradient_bytes: Number
    runs_backward: Number
    selective_bytes: Number
    selective_s: Number
    largest_selective_bytes: Number
    expert_bytes: Number
    trainable_expert_bytes: Number
    largest_dense_bytes: Number
    largest_expert_bytes: Number
    expert_optimizer_s: Number
    dispatch_bytes: Number
    dispatch_backward_bytes: Number
    context_bytes: Number
    context_backward_bytes: Number
    weight_pass_bytes: Number
    sends_back: Number


def parts_of(problem: Problem, prices: LayerPrices, layers: Sequence[int], samples: int) -> StageParts:
    """The parts of one stage: `layers` are positions, `samples` the microbatch size of the whole stage."""
    index, members = problem.index, set(layers)
    inside = [index.layers[i] for i in layers]
    trained = [index.layers[i] for i in layers if index.runs_backward[i]]
    own, tied = _reader(layers), _tied_corrections(problem, members)
    reads = {t for i in layers for t in index.inputs[i]}
    received = [t for t in reads if index.tensors[t].source not in members]
    sent = [t for i in layers for t in index.outputs[i] if any(x not in members for x in index.tensors[t].targets)]
    return StageParts(
        forward_s=sum(own(prices.forward_s)),
        backward_s=sum(own(prices.backward_s)),
        optimizer_s=sum(own(prices.optimizer_s)),
        parameter_bytes=sum([layer.parameter_bytes for layer in inside]) - tied.repeated,
        replicated_bytes=sum([layer.replicated_parameter_bytes for layer in inside]) - tied.replicated,
        trainable_bytes=sum([x.parameter_bytes for x in inside if x.trainable]) - tied.repeated_trainable,
        trainable_replicated_bytes=sum([x.replicated_parameter_bytes for x in inside if x.trainable])
        - tied.replicated_trainable,
        tied_bytes=tied.shared_outside,
        collective_bytes=samples * sum([layer.tensor_collective_bytes_per_sample for layer in inside]),
        collective_backward_bytes=samples * sum([layer.tensor_collective_bytes_per_sample for layer in trained]),
        activation_bytes=sum(own(prices.activation_bytes)),
        kept_input_bytes=samples * sum(index.tensors[t].bytes_per_sample for t in reads if _kept(index, t, members)),
        largest_activation_bytes=max(own(prices.activation_bytes)),
        workspace_bytes=max(own(prices.workspace_bytes)),
        receive_bytes=_volume(index, received, samples),
        receive_gradient_bytes=_volume(index, (t for t in sent if carries_gradient(index, t)), samples),
        send_bytes=_volume(index, sent, samples),
        send_gradient_bytes=_volume(index, (t for t in received if carries_gradient(index, t)), samples),
        runs_backward=any(index.runs_backward[i] for i in layers),
        selective_bytes=sum(own(prices.selective_bytes)),
        selective_s=sum(own(prices.selective_s)),
        largest_selective_bytes=max([prices.activation_bytes[i] - prices.selective_bytes[i] for i in layers]),
        expert_bytes=sum([layer.expert_parameter_bytes for layer in inside]) - tied.experts,
        trainable_expert_bytes=sum([x.expert_parameter_bytes for x in inside if x.trainable]) - tied.experts_trainable,
        largest_dense_bytes=max([layer.parameter_bytes - layer.expert_parameter_bytes for layer in inside]),
        largest_expert_bytes=max([layer.expert_parameter_bytes for layer in inside]),
        expert_optimizer_s=sum(own(prices.expert_optimizer_s)),
        dispatch_bytes=samples * sum([layer.expert_dispatch_bytes_per_sample for layer in inside]),
        dispatch_backward_bytes=samples * sum([layer.expert_dispatch_bytes_per_sample for layer in trained]),
        context_bytes=samples * sum([layer.context_bytes_per_sample for layer in inside]),
        context_backward_bytes=samples * sum([layer.context_bytes_per_sample for layer in trained]),
        weight_pass_bytes=sum(own(prices.weight_pass_bytes)),
        sends_back=any(carries_gradient(index, t) for t in received),
    )


def _reader(layers: Sequence[int]) -> Callable[[list[Any]], list[Any]]:
    """Reads the values of these layers from a list of all, in their order."""
    span = range(layers[0], layers[0] + len(layers))
    if list(layers) == list(span):
        return itemgetter(slice(span.start, span.stop))
    return lambda values: [values[i] for i in layers]


def carries_gradient(index: GraphIndex, tensor: int) -> bool:
    """Whether a gradient flows back through the tensor: it is differentiable and its maker has something to train."""
    t = index.tensors[tensor]
    return t.has_gradient and index.runs_backward[t.source]


@dataclass(slots=True)
class _Tied:
    """Shared bytes counted too often in the stage, in every sum that holds them, and those that others hold as well."""

    repeated: int = 0
    repeated_trainable: int = 0
    replicated: int = 0
    replicated_trainable: int = 0
    experts: int = 0
    experts_trainable: int = 0
    shared_outside: int = 0


def _tied_corrections(problem: Problem, members: set[int]) -> _Tied:
    index, found = problem.index, _Tied()
    for tied in problem.graph.tied:
        positions = [index.position[name] for name in tied.layers]
        here = [i for i in positions if i in members]
        trainable = sum(index.layers[i].trainable for i in here)
        again, again_trainable = max(0, len(here) - 1), max(0, trainable - 1)
        found.repeated += tied.parameter_bytes * again
        found.repeated_trainable += tied.parameter_bytes * again_trainable
        found.replicated += tied.replicated_parameter_bytes * again
        found.replicated_trainable += tied.replicated_parameter_bytes * again_trainable
        found.experts += tied.expert_parameter_bytes * again
        found.experts_trainable += tied.expert_parameter_bytes * again_trainable
        if 0 < trainable < sum(index.layers[i].trainable for i in positions):
            found.shared_outside += tied.parameter_bytes
    return found


def _volume(index: GraphIndex, tensors: Iterable[int], samples: int) -> int:
    return samples * sum(index.tensors[t].bytes_per_sample for t in tensors)


def _kept(index: GraphIndex, tensor: int, members: set[int]) -> bool:
    """A checkpoint keeps a tensor when one of its readers in the stage runs a backward pass."""
    return any(index.runs_backward[i] for i in index.tensors[tensor].targets if i in members)
