"""Our own executor: runs the action list that the plan's schedule gives this process, whatever the schedule is.

One action after the other: take the tensors that it needs, run the pass, send on what it makes. The schedule is known
by its actions alone (F, B, I and W of `planner.schedules`), so that a new one runs without a change here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from planner.plan import Plan
from planner.runtime.abilities import shape_of
from planner.runtime.layout import Layout
from planner.runtime.mailbox import Mailbox
from planner.runtime.recorder import Recorder
from planner.runtime.routes import Routes, Way
from planner.runtime.stage_passes import StagePasses, Tensors
from planner.schedules import SCHEDULES
from planner.timeline import Action, ActionKind

Data = Mapping[str, torch.Tensor]
SENDS_BACK = (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)


def actions_of(plan: Plan, layout: Layout, rank: int) -> tuple[Action, ...]:
    """The actions of a process in order: those of its stages, of its own microbatches where they are dealt."""
    group, replica = layout.seat(rank)
    for worker in SCHEDULES[plan.schedule].workers(shape_of(layout, plan)):
        if layout.group_of[worker.stages[0]] == group and worker.replica == (replica if layout.dealt else 0):
            return worker.actions
    return ()  # more replicas than microbatches are dealt to


@dataclass(slots=True)
class ActionListExecutor:
    """`stages` by number; gradients become this process's part of the gradient of the mean over the global batch.

    `with_gradient` names the tensors between stages that have one.
    """

    actions: Sequence[Action]
    stages: Mapping[int, StagePasses]
    routes: Routes
    replica: int
    with_gradient: frozenset[str]
    mailbox: Mailbox
    recorder: Recorder
    _losses: list[float] = field(default_factory=list)

    gradients_are_means = False
    """They are parts of the mean over the global batch: replicas sum them."""

    def passes(self, data: Data, target: torch.Tensor) -> float | None:
        """All actions of a step over the global batch. The mean loss of the own samples; None without a loss."""
        self._losses = []
        for action, following in zip(self.actions, [*self.actions[1:], None], strict=True):
            self._post(action)
            if following is not None:
                self._post(following)
            self._run(action, data, target)
        self.mailbox.flush()
        return sum(self._losses) / self._share() if self._losses else None

    def received_bytes(self) -> int:
        """Buffers are made when they are needed and let go: nothing stays."""
        return 0

    def _run(self, action: Action, data: Data, target: torch.Tensor) -> None:
        stage, number = self.stages[action.stage], action.microbatch
        taken = self._take(action)
        if action.kind is ActionKind.FORWARD:
            inputs = taken | {name: self._own(data[name], action) for name in stage.part.model_inputs}
            with self.recorder.action(action.stage, action.kind, number):
                made = stage.forward(number, inputs)
            self._lose(stage, action, target)
        else:
            with self.recorder.action(action.stage, action.kind, number):
                made = _backward(stage, action.kind, number, taken)
        self._send(action, made)

    def _lose(self, stage: StagePasses, action: Action, target: torch.Tensor) -> None:
        """The loss on the last stage, weighted with its samples: microbatches and replicas sum to the mean."""
        if stage.output is None:
            return
        wanted = self._own(target, action)
        with self.recorder.losing(action.stage):
            loss = stage.lose(action.microbatch, wanted, len(wanted) / len(target))
        assert loss is not None
        self._losses.append(loss)

    def _own(self, tensor: torch.Tensor, action: Action) -> torch.Tensor:
        """The own samples of a microbatch, of the global batch."""
        layout = self.routes.layout
        own = layout.samples(action.stage, self.replica, action.microbatch)
        start = action.microbatch * layout.microbatch_size
        return tensor[start + own.start : start + own.stop]

    def _share(self) -> float:
        return self.routes.layout.share(self.routes.layout.num_stages - 1, self.replica)

    def _incoming(self, action: Action) -> tuple[Way, ...]:
        """The ways over which the action's tensors or gradients come."""
        if action.kind is ActionKind.FORWARD:
            return self.routes.into(action.stage)
        if action.kind in SENDS_BACK:
            return tuple(way for way in self.routes.out_of(action.stage) if way.name in self.with_gradient)
        return ()

    def _post(self, action: Action) -> None:
        backward = action.kind is not ActionKind.FORWARD
        self.mailbox.post(self._incoming(action), action.stage, action.microbatch, backward=backward)

    def _take(self, action: Action) -> Tensors:
        """Tensors by name; the gradient of one that several stages read is the sum of theirs, in their order."""
        ways = self._incoming(action)
        found: Tensors = {}
        if not ways:
            return found
        with self.recorder.receiving(action):
            for way in ways:
                tensor = self.mailbox.take(way, action.microbatch, backward=action.kind is not ActionKind.FORWARD)
                found[way.name] = found[way.name] + tensor if way.name in found else tensor
        return found

    def _send(self, action: Action, made: Tensors) -> None:
        backward = action.kind is not ActionKind.FORWARD
        ways = self.routes.into(action.stage) if backward else self.routes.out_of(action.stage)
        for way in ways:
            if way.name in made:
                self.mailbox.put(way, action.stage, action.microbatch, made[way.name], backward=backward)


def _backward(stage: StagePasses, kind: ActionKind, microbatch: int, gradients: Tensors) -> Tensors:
    """What goes back to the stages before; nothing after W."""
    if kind is ActionKind.BACKWARD:
        return stage.backward(microbatch, gradients)
    if kind is ActionKind.INPUT_GRADIENT:
        return stage.backward_input(microbatch, gradients)
    stage.backward_weight(microbatch)
    return {}
