"""`latency`: the time of one microbatch through the pipeline: an iteration that has one microbatch.

Its size is the workload's: the microbatch size where it is given, the global batch over the number of microbatches
where that is given, else one sample. In training the backward pass, the all-reduce and the optimizer step belong to it.
"""

from __future__ import annotations

from dataclasses import replace

from planner.goals.base import GOALS, Answer, Planner, changed, fastest, labelled
from planner.optimizers.base import Clock
from planner.options import Objective, SearchOptions
from planner.problem import Problem
from planner.workload import Workload


@GOALS.register
class Latency:
    """The plan with the fastest single microbatch; its certificates are those of an iteration with one."""

    name = Objective.LATENCY.value

    def check(self, problem: Problem, options: SearchOptions) -> None:
        """Every problem has a latency."""

    def answer(self, problem: Problem, options: SearchOptions, plan: Planner) -> Answer:
        """One search on the workload of one microbatch."""
        size = microbatch_size(problem.workload)
        alone = problem.with_workload(
            replace(problem.workload, global_batch_size=size, microbatch_size=size, num_microbatches=1)
        )
        result = plan(alone, fastest(options, Clock(options.time_limit_s)))
        note = f"latency of one microbatch of {size}: the workload of the answer has a global batch of {size}"
        return Answer(
            problem=alone,
            result=changed(labelled(result, Objective.LATENCY, notes=(note,)), problem, alone),
        )


def microbatch_size(work: Workload) -> int:
    """The size of the microbatch whose latency is asked."""
    if work.microbatch_size is not None:
        return work.microbatch_size
    return work.global_batch_size // work.num_microbatches if work.num_microbatches else 1
