"""From a priced plan to the tasks that the engine runs.

Every worker of the schedule is a queue; a transfer, an all-reduce and an optimizer step are tasks of their own. What
follows the passes is `planner.simulation.tails`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from planner.costs.model import PricedPlan, PricedTransfer
from planner.problem import Problem
from planner.schedules import SCHEDULES, Pass, Worker
from planner.simulation.engine import Task
from planner.simulation.flows import pass_seconds
from planner.simulation.tails import add_tails
from planner.simulation.wires import Wires
from planner.timeline import Action, ActionKind
from planner.workload import Communication

GRADIENTS = (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)
"""Actions that make the gradient of a stage's input."""


@dataclass(slots=True, kw_only=True)
class Program:
    """Tasks, the number of resources, and for each worker the numbers of its tasks."""

    workers: tuple[Worker, ...]
    tasks: list[Task] = field(default_factory=list)
    num_resources: int = 0

    def owners(self, task: Task) -> list[int]:
        """The workers whose compute or collectives the task occupies: resources w and, of w workers, w + number."""
        count = len(self.workers)
        return [resource % count for resource in task.resources if resource < 2 * count]


def build(problem: Problem, priced: PricedPlan) -> Program:
    """The program of one iteration under the plan's schedule."""
    return _Builder(problem, priced).build()


def running_workers(priced: PricedPlan) -> tuple[Worker, ...]:
    """The schedule's workers; their orders have no backward passes of stages that run none."""
    workers = SCHEDULES[priced.plan.schedule].workers(priced.shape)
    runs = [stage.parts.runs_backward for stage in priced.stages]
    if all(runs):
        return workers
    return tuple(
        replace(worker, order=[p for p in worker.order if p.kind is ActionKind.FORWARD or runs[p.stage]])
        for worker in workers
    )


class _Name(NamedTuple):
    """The name of a pass, made when somebody reads it: there are many, and few are read."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return str(Action(*self))


class _SendName(NamedTuple):
    """The name of a transfer."""

    made: object
    read: object

    def __str__(self) -> str:
        return f"send {self.made} -> {self.read}"


NONE = -1
"""In place of a task's number: no worker runs this pass."""

Numbers = list[int]
"""Per microbatch the number of a task, or `NONE`."""


class _Builder:
    def __init__(self, problem: Problem, priced: PricedPlan) -> None:
        self.problem, self.priced = problem, priced
        self.workers = running_workers(priced)
        self.program = Program(workers=self.workers)
        self.wires = Wires(problem=problem, priced=priced, workers=self.workers, first=2 * len(self.workers))
        self.forwards, self.gradients, self.weights = (self._numbers() for _ in range(3))
        self.last: list[dict[int, int]] = [{} for _ in priced.stages]
        self.blocking = problem.workload.communication is Communication.BLOCKING

    def _numbers(self) -> list[Numbers]:
        """Per stage and microbatch, no task yet."""
        return [[NONE] * self.priced.plan.num_microbatches for _ in self.priced.stages]

    def build(self) -> Program:
        for number, worker in enumerate(self.workers):
            self._add_passes(number, worker)
        for stage in range(len(self.priced.stages)):
            self._after(self.forwards[stage], self.gradients[stage])
            self._after(self.gradients[stage], self.weights[stage])
        for transfer in self.priced.transfers:
            self._add_transfers(transfer)
        add_tails(self.program.tasks, self.problem, self.priced, self.workers, [list(of.values()) for of in self.last])
        self.program.num_resources = self.wires.num_resources
        return self.program

    def _add(self, task: Task) -> int:
        self.program.tasks.append(task)
        return len(self.program.tasks) - 1

    def _add_passes(self, number: int, worker: Worker) -> None:
        """The worker's passes in order, and which is the last of each of its stages."""
        of_kind = {p: self._kind(p) for p in set(worker.order)}
        for p, microbatch in worker.numbered:
            seconds, change, numbers = of_kind[p]
            task = Task(
                label=_Name(p.stage, p.kind, microbatch),
                category="compute",
                seconds=seconds,
                resources=(number,),
                queue=number,
                account=number,
                acquire=max(0, change),
                release=max(0, -change),
            )
            numbers[microbatch] = self.last[p.stage][number] = self._add(task)

    def _kind(self, p: Pass) -> tuple[float, int, Numbers]:
        """Seconds of these passes, the bytes that they take or give back, and where their numbers are kept."""
        stage = self.priced.stages[p.stage]
        numbers = {ActionKind.FORWARD: self.forwards, ActionKind.WEIGHT_GRADIENT: self.weights}
        return pass_seconds(stage, p.kind), stage.kept.change(p.kind), numbers.get(p.kind, self.gradients)[p.stage]

    def _after(self, first: Numbers, then: Numbers) -> None:
        """What the passes of a microbatch wait for on their own worker."""
        for before, task in zip(first, then, strict=True):
            if before != NONE and task != NONE:
                self.program.tasks[task].needs.append(before)

    def _add_transfers(self, transfer: PricedTransfer) -> None:
        """Of every microbatch its activations, then its gradients: what becomes ready together goes in this order."""
        a, b = transfer.source, transfer.target
        send = self._sender(transfer, (a, b), transfer.forward_bytes)
        send_back = self._sender(transfer, (b, a), transfer.backward_bytes)
        back = self.wires.has_gradient(transfer)
        for microbatch in range(self.priced.plan.num_microbatches):
            send(microbatch, self.forwards[a][microbatch], self.forwards[b][microbatch])
            if back:
                send_back(microbatch, self.gradients[b][microbatch], self.gradients[a][microbatch])

    def _sender(self, transfer: PricedTransfer, stages: tuple[int, int], num_bytes: int) -> Callable[..., None]:
        """What adds one transfer from the first of these stages to the second: (microbatch, maker, reader) tasks."""
        wire, tasks = num_bytes / transfer.share, self.program.tasks
        seconds = transfer.route.seconds(wire)
        occupied_s = None if self.blocking else wire / transfer.route.bandwidth_bytes_per_s
        taken: dict[tuple[int | None, int | None], tuple[int, ...]] = {}

        def send(microbatch: int, made: int, read: int) -> None:
            if NONE in (made, read):
                return
            maker, reader = tasks[made], tasks[read]
            ends = maker.queue, reader.queue
            if not num_bytes or ends[0] == ends[1]:
                reader.needs.append(made)
                return
            if ends not in taken:
                taken[ends] = self._resources(*stages, microbatch)
            task = Task(
                label=_SendName(maker.label, reader.label),
                category="transfer",
                seconds=seconds,
                occupied_s=occupied_s,
                resources=taken[ends],
                needs=[made],
            )
            reader.needs.append(self._add(task))

        return send

    def _resources(self, made: int, read: int, microbatch: int) -> tuple[int, ...]:
        """What a transfer between two stages occupies: its links, and under blocking transfers the workers as well."""
        links = self.wires.links(made, read, microbatch)
        ends = (self.wires.worker(stage, microbatch) for stage in (made, read))
        return (*ends, *links) if self.blocking else links
