"""What follows the passes of an iteration: sums of gradients, of tied ones too, and optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.costs.communication import ring_route
from planner.costs.model import PricedPlan, tied_between_stages
from planner.costs.stage import tied_all_reduce_s
from planner.problem import Problem
from planner.schedules import Worker


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


def ends_with_tails(
    problem: Problem, priced: PricedPlan, workers: Sequence[Worker], ends: Sequence[float]
) -> list[float]:
    """When each stage is done, where every worker has one stage and its passes end at `ends`.

    Nothing waits for anything but what it needs: a stage's all-reduce has its workers for itself, and sums of tied
    gradients that share a stage follow each other.
    """
    done = [0.0] * len(priced.stages)
    for worker, end in zip(workers, ends, strict=True):
        done[worker.stages[0]] = max(done[worker.stages[0]], end)
    if problem.training is None:
        return done
    done = [end + float(stage.seconds.all_reduce_s) for end, stage in zip(done, priced.stages, strict=True)]
    for holders, seconds in tied_sums(problem, priced):
        summed = max(done[holder] for holder in holders) + seconds
        for holder in holders:
            done[holder] = summed
    return [end + float(stage.seconds.optimizer_s) for end, stage in zip(done, priced.stages, strict=True)]
