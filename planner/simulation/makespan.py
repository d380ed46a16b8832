"""How long an iteration takes: by the recurrence where its theorem holds, else by the engine, with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from planner.costs.model import PricedPlan
from planner.problem import Problem
from planner.schedules import Order, Pass, Worker
from planner.simulation.engine import Task, simulate
from planner.simulation.flows import Flows, flows_of
from planner.simulation.program import build
from planner.simulation.recurrence import LEAST_SHARE, Passes, run
from planner.simulation.tails import add_tails
from planner.simulation.wires import Wires
from planner.timeline import ActionKind
from planner.workload import Communication


def makespan_s(problem: Problem, priced: PricedPlan, workers: Sequence[Worker]) -> float:
    """When the last thing of an iteration ends; `workers` are `running_workers` of the plan."""
    found = recurrent_makespan_s(problem, priced, workers)
    if found is not None:
        return found
    program = build(problem, priced)
    return simulate(program.tasks, program.num_resources).makespan_s


def recurrent_makespan_s(problem: Problem, priced: PricedPlan, workers: Sequence[Worker]) -> float | None:
    """By the recurrence; None where it does not hold, or where the engine has to say what is wrong.

    Blocking transfers take workers: which pass they delay is not known before. The other conditions are the theorem's.
    """
    if problem.workload.communication is Communication.BLOCKING:
        return None
    flows = flows_of(priced, Wires(problem=problem, priced=priced, workers=workers), _kinds(workers))
    if not run([_passes(flows, worker.order) for worker in workers], flows.flows):
        return None
    last = _with_tails_s(problem, priced, workers, flows)
    return last if _least_s(flows) > LEAST_SHARE * last else None


def _kinds(workers: Sequence[Worker]) -> set[tuple[int, ActionKind]]:
    return {(p.stage, p.kind) for worker in workers for p in set(worker.order)}


def _passes(flows: Flows, order: Order) -> Passes:
    """The order with its steps."""
    numbers: dict[tuple[int, ActionKind], Iterator[int]] = {}
    passes = {
        p: (numbers.setdefault(_numbering(p), iter(p.microbatches)), flows.steps[p.stage, p.kind]) for p in set(order)
    }
    return list(map(passes.__getitem__, order))


def _numbering(p: Pass) -> tuple[int, ActionKind]:
    """Which passes of a worker are numbered together: B and I are."""
    return p.stage, ActionKind.BACKWARD if p.kind is ActionKind.INPUT_GRADIENT else p.kind


def _with_tails_s(problem: Problem, priced: PricedPlan, workers: Sequence[Worker], flows: Flows) -> float:
    """When the tails have ended, by the engine: a task stands for all passes of a stage, in the order of a program."""
    ends = [0.0] * len(priced.stages)
    for (stage, _), step in flows.steps.items():
        ends[stage] = max(ends[stage], step.end_s)
    tasks, last = list[Task](), [list[int]() for _ in ends]
    for stages in dict.fromkeys(worker.stages for worker in workers):
        for stage in sorted(stages, key=ends.__getitem__):
            last[stage] = [len(tasks)]
            tasks.append(Task(label="", category="", seconds=ends[stage]))
    add_tails(tasks, problem, priced, workers, last)
    return simulate(tasks, 2 * len(workers)).makespan_s


def _least_s(flows: Flows) -> float:
    """The least time that a pass or a message on a shared link takes."""
    passes = (step.seconds for step in flows.steps.values())
    messages = (flow.occupied_s for flow in flows.flows if flow.competing)
    return min(chain(passes, messages), default=0.0)
