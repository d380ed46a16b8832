"""Peak memory of a rank at allocator level: a walk through its actions, with the bytes that they take and give back.

What stays is weights, optimizer state (Adam: twice the weights) and, from the first backward pass of a step on,
gradients. A pass of a stage is the passes of its layers, one after the other, so that also peaks inside it count. Each
microbatch holds what the stage received until its backward pass, and every gradient that was sent is let go at the end
of the step only. The optimizer needs twice its largest parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.truth.passes import PassBytes
from planner.graph import Edge, LayerGraph
from planner.plan import Plan
from planner.runtime.abilities import check_runnable
from planner.runtime.action_lists import actions_of
from planner.runtime.program import LOSS_LAYER
from planner.timeline import Action, ActionKind

ADAM_STATES = 2
OPTIMIZER_TEMPORARIES = 2

LayerBytes = Mapping[str, Mapping[str, PassBytes]]


def peak_bytes(
    plan: Plan, graph: LayerGraph, passes: LayerBytes, largest_parameter_bytes: Mapping[str, int], rank: int
) -> int:
    """The most bytes that a rank holds at once in a step by our own executor, after the first step."""
    layout = check_runnable(plan)
    stages = layout.stages_on(rank)
    weights = {layer.id: layer.parameter_bytes for layer in graph.layers}
    layers = {stage: _layers(plan, stage) for stage in stages}
    own = [layer for stage in stages for layer in layers[stage]]
    static = (1 + ADAM_STATES) * sum(weights[layer] for layer in own)
    walk = _Walk(plan=plan, graph=graph, passes=passes, layers=layers, weights=weights)
    for action in actions_of(plan, layout, rank):
        walk.run(action)
    gradients = sum(weights[layer] for layer in own)
    stepping = gradients + OPTIMIZER_TEMPORARIES * max(largest_parameter_bytes[layer] for layer in own)
    return static + max(walk.peak, stepping)


def _layers(plan: Plan, stage: int) -> list[str]:
    return [layer for layer in plan.stages[stage].layers if layer != LOSS_LAYER]


@dataclass(slots=True, kw_only=True)
class _Walk:
    plan: Plan
    graph: LayerGraph
    passes: LayerBytes
    layers: Mapping[int, Sequence[str]]
    weights: Mapping[str, int]
    live: int = 0
    peak: int = 0
    started: set[int] = field(default_factory=set)

    def run(self, action: Action) -> None:
        """Walk through the layers of one pass."""
        stage, layers = action.stage, self.layers[action.stage]
        if action.kind is ActionKind.FORWARD:
            self._take(self._crossing(stage, into=True))
            self._steps((layer, "F") for layer in layers)
            if stage == len(self.plan.stages) - 1:
                self._steps([(layers[-1], "loss")])
            return
        if action.kind is not ActionKind.WEIGHT_GRADIENT:
            self._take(self._crossing(stage, into=False))
        self._backward(stage, action.kind)
        if action.kind is not ActionKind.INPUT_GRADIENT:
            self._take(-self._crossing(stage, into=True))

    def _backward(self, stage: int, kind: ActionKind) -> None:
        """I of the first stage has nothing to do: W is then its whole backward pass."""
        whole = kind is ActionKind.BACKWARD or stage == 0
        if kind is ActionKind.INPUT_GRADIENT and whole:
            return
        first = stage not in self.started and kind is not ActionKind.INPUT_GRADIENT
        for layer in reversed(self.layers[stage]):
            self._steps([(layer, "B first" if first and whole else "B" if whole else kind.value)])
            if whole:
                self._take(-self._gradient(layer))
            elif first:
                self._take(self.weights[layer])
        if first:
            self.started.add(stage)

    def _steps(self, steps: Iterable[tuple[str, str]]) -> None:
        for layer, kind in steps:
            step = self.passes[layer].get(kind)
            if step is not None:
                self.peak = max(self.peak, self.live + step.peak)
                self._take(step.net)

    def _take(self, num_bytes: int) -> None:
        self.live += num_bytes
        self.peak = max(self.peak, self.live)

    def _crossing(self, stage: int, *, into: bool) -> int:
        """Bytes of one microbatch's tensors that come from other ranks, or of the gradients that come back."""
        here = set(self.layers[stage])
        home = {layer for own in self.layers.values() for layer in own}
        tensors = {
            (edge.source, edge.tensor): edge.bytes_per_sample
            for edge in self.graph.edges
            if (edge.target in here and edge.source not in home if into else self._leaves(edge, here, home))
        }
        return self.plan.microbatch_size * sum(tensors.values())

    def _leaves(self, edge: Edge, here: set[str], home: set[str]) -> bool:
        return edge.source in here and edge.target not in home | {LOSS_LAYER}

    def _gradient(self, layer: str) -> int:
        """Bytes of the gradients of the layer's output, which its backward pass has used."""
        tensors = {e.tensor: e.bytes_per_sample for e in self.graph.edges if self._leaves(e, {layer}, set())}
        return self.plan.microbatch_size * sum(tensors.values())
