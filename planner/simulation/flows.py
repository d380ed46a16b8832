"""From a priced plan to what the recurrence runs: per worker its steps, per pair of workers the messages between them.

Passes of one stage and kind differ in nothing but the microbatch, so that there are few objects, each used many times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from operator import add

from planner.costs.model import PricedPlan, PricedStage, PricedTransfer
from planner.simulation.wires import Wires
from planner.timeline import ActionKind


@dataclass(slots=True, eq=False, kw_only=True)
class Inbox:
    """Per microbatch, how many messages one kind of pass still waits for, and when the latest of the others came."""

    missing: list[int]
    ready_s: list[float]


@dataclass(slots=True, eq=False, kw_only=True)
class Flow:
    """The messages from one worker to another along one transfer in one direction, which are made in one order.

    `maker` and `reader` are workers. A message takes its `links` for `occupied_s` and arrives after `seconds`.
    `number` is the flow's place among all, `competing` are the links on which others' messages may be in the way.
    """

    maker: int
    reader: int
    inbox: Inbox
    links: tuple[int, ...] = ()
    seconds: float = 0.0
    occupied_s: float = 0.0
    number: int = -1
    competing: tuple[int, ...] = ()
    free_s: float = 0.0


Sent = Sequence[tuple[Flow, ...]]
"""Per microbatch, the flows in which a pass sends."""


@dataclass(slots=True, eq=False, kw_only=True)
class Step:
    """All passes of one stage and kind. `done` is an inbox of the same worker that each of them fills, `sent` are per
    microbatch the flows in which it sends, `end_s` is when the last of them ends, as far as they have run."""

    seconds: float
    inbox: Inbox
    done: Inbox | None
    sent: Sent
    end_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Flows:
    """The steps by stage and kind of pass, and all flows by maker."""

    steps: dict[tuple[int, ActionKind], Step]
    flows: list[Flow]


def pass_seconds(stage: PricedStage, kind: ActionKind) -> float:
    """Seconds of one pass."""
    match kind:
        case ActionKind.FORWARD:
            return float(stage.seconds.forward_s)
        case ActionKind.BACKWARD:
            return float(stage.seconds.backward_s)
        case ActionKind.INPUT_GRADIENT:
            return stage.split.input_s
        case ActionKind.WEIGHT_GRADIENT:
            return stage.split.weight_s


def flows_of(priced: PricedPlan, wires: Wires, kinds: Iterable[tuple[int, ActionKind]]) -> Flows:
    """Steps for these kinds of passes of stages, joined by the flows of all transfers.

    Flows are in the order in which the engine numbers messages that become ready at the same moment.
    """
    return _Joining(priced, wires).joined(kinds)


class _Joining:
    def __init__(self, priced: PricedPlan, wires: Wires) -> None:
        self.priced, self.wires = priced, wires
        self.count = priced.plan.num_microbatches
        stages = range(len(priced.stages))
        self.forwards, self.gradients, self.weights = ([self._inbox(own) for _ in stages] for own in (0, 1, 1))
        self.sent: dict[tuple[int, bool], Sent] = {}
        self.flows: list[Flow] = []

    def joined(self, kinds: Iterable[tuple[int, ActionKind]]) -> Flows:
        for transfer in self.priced.transfers:
            source, target = transfer.source, transfer.target
            self._join(transfer, (source, target), self.forwards[target], transfer.forward_bytes)
            if self.wires.has_gradient(transfer):
                self._join(transfer, (target, source), self.gradients[source], transfer.backward_bytes)
        steps = {(stage, kind): self._step(stage, kind) for stage, kind in kinds}
        flows = sorted(self.flows, key=lambda flow: flow.maker)
        _number(flows)
        return Flows(steps=steps, flows=flows)

    def _inbox(self, own: int) -> Inbox:
        """A gradient waits for its own stage's forward, a weight gradient for its input gradient."""
        return Inbox(missing=[own] * self.count, ready_s=[0.0] * self.count)

    def _join(self, transfer: PricedTransfer, ends: tuple[int, int], inbox: Inbox, num_bytes: int) -> None:
        """One flow per pair of workers: replicas that are dealt microbatches meet again after `lcm` of them."""
        inbox.missing = [count + 1 for count in inbox.missing]
        dealt = self.priced.shape.dealt
        apart = min(self.count, lcm(dealt[ends[0]], dealt[ends[1]]))
        flows = [self._flow(transfer, ends, inbox, num_bytes, m) for m in range(apart)]
        self.flows += flows
        key = (ends[0], ends[0] < ends[1])
        turns = [(flow,) for flow in flows] * -(-self.count // apart)
        before = self.sent.get(key)
        self.sent[key] = list(map(add, before, turns)) if before else turns

    def _flow(
        self, transfer: PricedTransfer, ends: tuple[int, int], inbox: Inbox, num_bytes: int, microbatch: int
    ) -> Flow:
        maker, reader = (self.wires.worker(stage, microbatch) for stage in ends)
        if not num_bytes or maker == reader:
            return Flow(maker=maker, reader=reader, inbox=inbox)
        wire, links = num_bytes / transfer.share, self.wires.links(*ends, microbatch)
        return Flow(
            maker=maker,
            reader=reader,
            inbox=inbox,
            links=links,
            seconds=transfer.route.seconds(wire),
            occupied_s=wire / transfer.route.bandwidth_bytes_per_s if links else 0.0,
        )

    def _step(self, stage: int, kind: ActionKind) -> Step:
        seconds = pass_seconds(self.priced.stages[stage], kind)
        nothing: Sent = [()] * self.count
        match kind:
            case ActionKind.FORWARD:
                sent = self.sent.get((stage, True), nothing)
                return Step(seconds=seconds, inbox=self.forwards[stage], done=self.gradients[stage], sent=sent)
            case ActionKind.WEIGHT_GRADIENT:
                return Step(seconds=seconds, inbox=self.weights[stage], done=None, sent=nothing)
        done = self.weights[stage] if kind is ActionKind.INPUT_GRADIENT else None
        return Step(
            seconds=seconds, inbox=self.gradients[stage], done=done, sent=self.sent.get((stage, False), nothing)
        )


def _number(flows: Sequence[Flow]) -> None:
    """Give every flow its number, and of the links that it shares one for each set of flows that share them."""
    users: dict[int, list[int]] = {}
    for number, flow in enumerate(flows):
        for link in flow.links:
            users.setdefault(link, []).append(number)
    shared = {tuple(numbers): link for link, numbers in users.items() if len(numbers) > 1}
    for number, flow in enumerate(flows):
        flow.number, flow.competing = number, ()
    for numbers, link in shared.items():
        for number in numbers:
            flows[number].competing += (link,)
