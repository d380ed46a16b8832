"""From a priced plan to the tasks that the engine runs.

Every worker of the schedule is a queue; a transfer, an all-reduce and an optimizer step are tasks of their own. The
all-reduce of a stage starts after that stage's own last backward, sums of tied gradients after the all-reduces of all
stages that hold a copy, the optimizer step last. Collectives occupy no compute: where a worker runs several stages, the
passes of the others go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.costs.model import PricedPlan, PricedTransfer
from planner.problem import Problem
from planner.schedules import SCHEDULES, Worker
from planner.simulation.engine import Task
from planner.simulation.flows import pass_seconds
from planner.simulation.tails import tied_sums
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


class _Builder:
    def __init__(self, problem: Problem, priced: PricedPlan) -> None:
        self.problem, self.priced = problem, priced
        self.workers = running_workers(priced)
        self.program = Program(workers=self.workers)
        self.wires = Wires(problem=problem, priced=priced, workers=self.workers, first=2 * len(self.workers))
        self.task_of: dict[Action, int] = {}
        self.blocking = problem.workload.communication is Communication.BLOCKING

    def build(self) -> Program:
        for number, worker in enumerate(self.workers):
            for action in worker.actions:
                self._add_action(number, action)
        for action, number in self.task_of.items():
            if action.kind in GRADIENTS:
                self._need(number, Action(action.stage, ActionKind.FORWARD, action.microbatch))
            elif action.kind is ActionKind.WEIGHT_GRADIENT:
                self._need(number, Action(action.stage, ActionKind.INPUT_GRADIENT, action.microbatch))
        for transfer in self.priced.transfers:
            for microbatch in range(self.priced.plan.num_microbatches):
                self._add_transfer(transfer, microbatch)
        self._add_tails()
        self.program.num_resources = self.wires.num_resources
        return self.program

    def _add(self, task: Task) -> int:
        self.program.tasks.append(task)
        return len(self.program.tasks) - 1

    def _add_action(self, worker: int, action: Action) -> None:
        stage = self.priced.stages[action.stage]
        change = stage.kept.change(action.kind)
        self.task_of[action] = self._add(
            Task(
                label=str(action),
                category="compute",
                seconds=pass_seconds(stage, action.kind),
                resources=(worker,),
                queue=worker,
                account=worker,
                acquire=max(0, change),
                release=max(0, -change),
            )
        )

    def _need(self, task: int, before: Action) -> None:
        if before in self.task_of:
            self.program.tasks[task].needs.append(self.task_of[before])

    def _add_transfer(self, transfer: PricedTransfer, microbatch: int) -> None:
        a, b = transfer.source, transfer.target
        self._send(
            transfer,
            Action(a, ActionKind.FORWARD, microbatch),
            Action(b, ActionKind.FORWARD, microbatch),
            transfer.forward_bytes,
        )
        if self.wires.has_gradient(transfer):
            self._send(
                transfer,
                self._gradient(b, microbatch),
                self._gradient(a, microbatch),
                transfer.backward_bytes,
            )

    def _gradient(self, stage: int, microbatch: int) -> Action:
        """What gives the gradient of the stage's input: I where the backward pass is split, else B."""
        split = Action(stage, ActionKind.INPUT_GRADIENT, microbatch)
        return split if split in self.task_of else Action(stage, ActionKind.BACKWARD, microbatch)

    def _send(self, transfer: PricedTransfer, made: Action, read: Action, num_bytes: int) -> None:
        if read not in self.task_of or made not in self.task_of:
            return
        reader = self.program.tasks[self.task_of[read]]
        if not num_bytes or self._worker(made) == self._worker(read):
            reader.needs.append(self.task_of[made])
            return
        wire = num_bytes / transfer.share
        seconds = transfer.route.seconds(wire)
        ends = (self._worker(made), self._worker(read))
        links = self.wires.links(made.stage, read.stage, made.microbatch)
        sent = self._add(
            Task(
                label=f"send {made} -> {read}",
                category="transfer",
                seconds=seconds,
                occupied_s=None if self.blocking else wire / transfer.route.bandwidth_bytes_per_s,
                resources=self._blocked(ends) + links if self.blocking else links,
                needs=[self.task_of[made]],
            )
        )
        reader.needs.append(sent)

    def _worker(self, action: Action) -> int:
        return self.wires.worker(action.stage, action.microbatch)

    def _blocked(self, ends: tuple[int, int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(ends))

    def _add_tails(self) -> None:
        if self.problem.training is None:
            return
        last = [self._last_backwards(stage) for stage in range(len(self.priced.stages))]
        done = [self._tail(s, "all-reduce", p.seconds.all_reduce_s, last[s]) for s, p in enumerate(self.priced.stages)]
        tied = self._add_tied(done)
        for number, stage in enumerate(self.priced.stages):
            self._tail(number, "optimizer", stage.seconds.optimizer_s, tied[number])

    def _last_backwards(self, stage: int) -> list[int]:
        """The last task of each of the stage's workers that belongs to the stage."""
        found: dict[int, int] = {}
        for action, task in self.task_of.items():
            if action.stage == stage:
                found[self._worker(action)] = max(task, found.get(self._worker(action), -1))
        return list(found.values())

    def _tail(self, stage: int, label: str, seconds: float, needs: list[int]) -> list[int]:
        """A task on all workers of the stage; nothing where it takes no time."""
        if not seconds:
            return needs
        workers = tuple(n for n, worker in enumerate(self.workers) if stage in worker.stages)
        steps = label == "optimizer"
        return [
            self._add(
                Task(
                    label=label if len(self.workers[workers[0]].stages) == 1 else f"{label} {stage}",
                    category="optimizer" if steps else "all_reduce",
                    seconds=float(seconds),
                    resources=workers if steps else self._collective(workers),
                    needs=list(needs),
                )
            )
        ]

    def _collective(self, workers: Sequence[int]) -> tuple[int, ...]:
        """The resources that collectives of these workers occupy (`Program.owners`)."""
        return tuple(len(self.workers) + worker for worker in workers)

    def _add_tied(self, done: list[list[int]]) -> list[list[int]]:
        after = [list(needs) for needs in done]
        for holders, seconds in tied_sums(self.problem, self.priced):
            workers = sorted({n for n, w in enumerate(self.workers) if set(w.stages) & set(holders)})
            task = Task(
                label="tied all-reduce",
                category="all_reduce",
                seconds=seconds,
                resources=self._collective(workers),
                needs=[need for holder in holders for need in after[holder]],
            )
            number = self._add(task)
            for holder in holders:
                after[holder] = [number]
        return after
