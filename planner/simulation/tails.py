"""What follows the passes of an iteration: sums of gradients, of tied ones too, and optimizer steps.

The all-reduce of a stage starts after that stage's own last backward pass, sums of tied gradients after the all-reduces
of all stages that hold a copy. Collectives occupy no compute: where a worker runs several stages, the passes of the
others go on meanwhile. The optimizer step is one for all stages of a worker, after all its passes and sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.costs.communication import ring_route
from planner.costs.model import PricedPlan, tied_between_stages
from planner.costs.stage import tied_all_reduce_s
from planner.problem import Problem
from planner.schedules import Worker
from planner.simulation.engine import Task

Numbers = list[int]
"""Of tasks."""


def tied_sums(problem: Problem, priced: PricedPlan) -> Iterator[tuple[tuple[int, ...], float]]:
    """(the stages that hold a copy, seconds of their sum) per set of tied parameters, in the order of the graph."""
    stage_of = [-1] * len(problem.index)
    for number, stage in enumerate(priced.stages):
        for layer in stage.layers:
            stage_of[layer] = number
    for holders, shared in tied_between_stages(problem, stage_of):
        stages = priced.plan.stages
        route = ring_route(problem, [stages[s].replicas[0][0] for s in holders])
        yield holders, float(tied_all_reduce_s(problem, shared, len(holders), stages[holders[0]].tensor, route))


def add_tails(
    tasks: list[Task], problem: Problem, priced: PricedPlan, workers: Sequence[Worker], last: Sequence[Numbers]
) -> None:
    """Append the tasks of all tails; `last` are per stage the last passes, one per worker. Nothing for inference.

    Worker `n` computes on resource `n` and takes part in one collective at a time on resource `len(workers) + n`.
    """
    if problem.training is not None:
        _Tails(tasks, priced, workers).add(problem, last)


class _Tails:
    def __init__(self, tasks: list[Task], priced: PricedPlan, workers: Sequence[Worker]) -> None:
        self.tasks, self.priced, self.workers = tasks, priced, workers
        self.of_stage = [Numbers() for _ in priced.stages]
        for number, worker in enumerate(workers):
            for stage in worker.stages:
                self.of_stage[stage].append(number)

    def add(self, problem: Problem, last: Sequence[Numbers]) -> None:
        done = [self._summed(stage, needs) for stage, needs in enumerate(last)]
        for holders, seconds in tied_sums(problem, self.priced):
            workers = sorted({worker for holder in holders for worker in self.of_stage[holder]})
            needs = [need for holder in holders for need in done[holder]]
            number = self._collective("tied all-reduce", seconds, workers, needs)
            for holder in holders:
                done[holder] = [number]
        for stages in dict.fromkeys(worker.stages for worker in self.workers):
            self._step(stages, [need for stage in stages for need in done[stage]])

    def _summed(self, stage: int, needs: Numbers) -> Numbers:
        """The all-reduce of a stage; what it needs where it takes no time."""
        seconds, workers = float(self.priced.stages[stage].seconds.all_reduce_s), self.of_stage[stage]
        if not seconds:
            return list(needs)
        alone = len(self.workers[workers[0]].stages) == 1
        return [self._collective("all-reduce" if alone else f"all-reduce {stage}", seconds, workers, needs)]

    def _step(self, stages: Sequence[int], needs: Numbers) -> None:
        """The optimizer step of the workers that run these stages."""
        seconds = sum(float(self.priced.stages[stage].seconds.optimizer_s) for stage in stages)
        if seconds:
            self._add("optimizer", "optimizer", seconds, self.of_stage[stages[0]], needs)

    def _collective(self, label: str, seconds: float, workers: Sequence[int], needs: Numbers) -> int:
        resources = [len(self.workers) + worker for worker in workers]
        return self._add(label, "all_reduce", seconds, resources, needs)

    def _add(self, label: str, category: str, seconds: float, resources: Sequence[int], needs: Numbers) -> int:
        task = Task(label=label, category=category, seconds=seconds, resources=tuple(resources), needs=needs)
        self.tasks.append(task)
        return len(self.tasks) - 1
