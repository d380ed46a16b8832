"""How long an iteration takes: by the recurrence where its theorem holds, else by the engine, with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from planner.costs.model import PricedPlan
from planner.problem import Problem
from planner.schedules import Order, Pass, Worker
from planner.simulation.engine import simulate
from planner.simulation.flows import Flows, flows_of
from planner.simulation.program import build
from planner.simulation.recurrence import LEAST_SHARE, Part, ends_of
from planner.simulation.tails import ends_with_tails, tied_sums
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
    alone = all(len(worker.stages) == 1 for worker in workers)
    trains = problem.training is not None
    if problem.workload.communication is Communication.BLOCKING:
        return None
    if trains and not alone and any(tied_sums(problem, priced)):
        return None
    flows = flows_of(priced, Wires(problem=problem, priced=priced, workers=workers), _kinds(workers))
    tails = _tails(priced) if trains and not alone else {}
    ends = ends_of([_parts(flows, worker.order, tails) for worker in workers], flows.flows)
    if ends is None:
        return None
    last = max(ends_with_tails(problem, priced, workers, ends) if alone else ends)
    return last if _least_s(flows, tails) > LEAST_SHARE * last else None


def _kinds(workers: Sequence[Worker]) -> set[tuple[int, ActionKind]]:
    return {(p.stage, p.kind) for worker in workers for p in set(worker.order)}


Tails = dict[int, tuple[float, float]]
"""Seconds of all-reduce and optimizer step by stage, where they come between the passes of other stages."""


def _tails(priced: PricedPlan) -> Tails:
    return {
        number: (float(stage.seconds.all_reduce_s), float(stage.seconds.optimizer_s))
        for number, stage in enumerate(priced.stages)
    }


def _parts(flows: Flows, order: Order, tails: Tails) -> list[Part]:
    """The order with its steps, cut after the last pass of every stage with a tail."""
    numbers: dict[tuple[int, ActionKind], Iterator[int]] = {}
    passes = {
        p: (numbers.setdefault(_numbering(p), iter(p.microbatches)), flows.steps[p.stage, p.kind]) for p in set(order)
    }
    whole = list(map(passes.__getitem__, order))
    if not tails:
        return [Part(passes=whole)]
    last = {p.stage: at for at, p in enumerate(order)}
    cuts = sorted((at + 1, *tails[stage]) for stage, at in last.items())
    starts = [0, *(at for at, _, _ in cuts)]
    return [
        Part(passes=whole[start:end], all_reduce_s=all_reduce_s, optimizer_s=optimizer_s)
        for start, (end, all_reduce_s, optimizer_s) in zip(starts, cuts, strict=False)
    ]


def _numbering(p: Pass) -> tuple[int, ActionKind]:
    """Which passes of a worker are numbered together: B and I are."""
    return p.stage, ActionKind.BACKWARD if p.kind is ActionKind.INPUT_GRADIENT else p.kind


def _least_s(flows: Flows, tails: Tails) -> float:
    """The least time that a pass, a message on a shared link or a tail between passes takes."""
    passes = (step.seconds for step in flows.steps.values())
    messages = (flow.occupied_s for flow in flows.flows if flow.competing)
    return min(chain(passes, messages, (s for both in tails.values() for s in both if s)), default=0.0)
