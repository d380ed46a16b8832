"""Which layer an operator of a trace belongs to, in which direction. The rule, with annotations as `record_function`
(or the profiler's `with_modules`) writes them:

1. *Layers* are the outermost annotations around forward operators; where all of these have one name (a whole
   `forward`), the ones within it. At a finer grain than `block`: the innermost ones. `Optimizer.*` is the optimizer.
   What is open while backward work is done is no layer, but layers may lie in it. Without annotations, modules
   (`nn.Module: ...`) stand in their place; without these, each outermost operator is a layer.
2. An outermost operator inside such an annotation is *forward* work of that layer.
3. `autograd::engine::evaluate_function` is *backward* work of the layer that holds the forward operator with the same
   sequence number. Nodes without one (accumulation of gradients) belong to the layer of the node before them.
   Annotations inside of it are forward work that is done again, so backward work.
4. An outermost operator between the annotations belongs to a layer of its own, `after X` or `before X`, as long as no
   backward work was done since X; else it is no layer's (gradient clipping, all-reduce).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from profiles.importers._trace_events import ANNOTATIONS, FUNCTIONS, OPERATORS, STEP, Node, Span, Trace, Windows, nested
from profiles.model import Grain

AUTOGRAD = "autograd::engine::evaluate_function"
OPTIMIZER = "Optimizer."
MODULE = "nn.Module: "
SEQUENCE = "Sequence number"


class Role(StrEnum):
    """What work of an operator is for."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """An outermost operator, whose it is, and what for."""

    node: Node
    role: Role
    layer: str = ""


@dataclass(slots=True, kw_only=True)
class Layers:
    """Work in the order of time; per layer how often it ran forward, and when; the layers that annotations name."""

    work: list[Work] = field(default_factory=list)
    windows: list[tuple[str, Span]] = field(default_factory=list)

    @property
    def runs(self) -> dict[str, int]:
        """Annotations per layer."""
        counts: dict[str, int] = {}
        for name, _ in self.windows:
            counts[name] = counts.get(name, 0) + 1
        return counts


def assigned(trace: Trace, grain: Grain) -> Layers:
    """All outermost operators of the trace, each with its layer; see the module."""
    roots = nested(trace.of(OPERATORS))
    backward = [node for node in roots if node.span.name.startswith(AUTOGRAD)]
    forward = [node for node in roots if not node.span.name.startswith(AUTOGRAD)]
    optimizer = Windows(_optimizer(trace))
    windows = _windows(trace, backward, [n for n in forward if not optimizer.at(n.span.thread, n.span.start_us)], grain)
    found = Layers(windows=windows)
    owners = _Owners(windows, optimizer)
    for node in roots:
        found.work.append(owners.of(node))
    return found


def _optimizer(trace: Trace) -> Iterator[Span]:
    """Outermost annotations of the optimizer."""
    named = (span for span in trace.of(ANNOTATIONS) if span.name.startswith(OPTIMIZER))
    return (node.span for node in nested(named))


class _Owners:
    """Rules 2 to 4, for operators in the order of time."""

    def __init__(self, windows: list[tuple[str, Span]], optimizer: Windows) -> None:
        self._name = {span: name for name, span in windows}
        self._windows = Windows(span for _, span in windows)
        self._threads = {span.thread for _, span in windows}
        self._first = windows[0][0] if windows else ""
        self._optimizer = optimizer
        self._of_sequence: dict[int, str] = {}
        self._last_backward: dict[tuple[str, str], str] = {}
        self._backward_until = -1.0

    def of(self, node: Node) -> Work:
        """Whose work the operator is."""
        span = node.span
        if span.name.startswith(AUTOGRAD):
            return Work(node=node, role=Role.BACKWARD, layer=self._backward(span))
        if self._optimizer.at(span.thread, span.start_us):
            return Work(node=node, role=Role.OPTIMIZER)
        window = self._windows.last(span.thread, span.start_us)
        if window and span.start_us < window.end_us:
            return self._forward(node, self._name[window])
        if window is not None and self._backward_until <= window.end_us:
            return self._forward(node, f"after {self._name[window]}")
        if window is None and span.thread in self._threads:
            return self._forward(node, f"before {self._first}")
        return Work(node=node, role=Role.OTHER)

    def _forward(self, node: Node, layer: str) -> Work:
        for span in node.all():
            sequence = span.whole(SEQUENCE)
            if sequence is not None:
                self._of_sequence[sequence] = layer
        return Work(node=node, role=Role.FORWARD, layer=layer)

    def _backward(self, span: Span) -> str:
        self._backward_until = max(self._backward_until, span.end_us)
        sequence = span.whole(SEQUENCE)
        layer = self._of_sequence.get(-1 if sequence is None else sequence) or self._last_backward.get(span.thread, "")
        self._last_backward[span.thread] = layer
        return layer


def _windows(trace: Trace, backward: list[Node], forward: list[Node], grain: Grain) -> list[tuple[str, Span]]:
    """The spans that are layers, with their names, in the order of time (rule 1)."""
    named = [s for s in trace.of(ANNOTATIONS) if not s.name.startswith((OPTIMIZER, STEP))]
    modules = [s for s in trace.of(FUNCTIONS) if s.name.startswith(MODULE)]
    again = Windows(node.span for node in backward)
    bearing = _Bearing(forward, backward)
    for spans in (named, modules):
        marks = [span for span in spans if not again.at(span.thread, span.start_us)]
        chosen = _chosen(bearing.of(nested(marks)), grain)
        if chosen:
            return [(node.span.name.removeprefix(MODULE), node.span) for node in chosen]
    return [(f"{node.span.name}#{number}", node.span) for number, node in enumerate(forward)]


class _Bearing:
    """Annotations that can be layers: with forward operators in them, and without backward work while they are open."""

    def __init__(self, forward: list[Node], backward: list[Node]) -> None:
        self._forward = Windows(node.span for node in forward)
        self._backward_us = [node.span.start_us for node in backward]

    def of(self, nodes: Iterable[Node]) -> list[Node]:
        """Those among the nodes; one with backward work gives its place to those within it."""
        found: list[Node] = []
        for node in nodes:
            children = self.of(node.children)
            if self._runs_backward(node.span):
                found += children
            elif self._runs_forward(node.span):
                found.append(Node(node.span, children))
        return found

    def _runs_forward(self, span: Span) -> bool:
        last = self._forward.last(span.thread, span.end_us)
        return last is not None and last.start_us >= span.start_us

    def _runs_backward(self, span: Span) -> bool:
        number = bisect.bisect_left(self._backward_us, span.start_us)
        return number < len(self._backward_us) and self._backward_us[number] < span.end_us


def _chosen(nodes: list[Node], grain: Grain) -> list[Node]:
    if grain is not Grain.BLOCK:
        return sorted(_leaves(nodes), key=lambda node: node.span.start_us)
    while len({node.span.name for node in nodes}) == 1 and any(node.children for node in nodes):
        nodes = [child for node in nodes for child in node.children]
    return nodes


def _leaves(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        if node.children:
            yield from _leaves(node.children)
        else:
            yield node
