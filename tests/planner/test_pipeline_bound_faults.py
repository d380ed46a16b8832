"""Two faults of the pipeline bound that were found by reading it, each with a plan that it claimed to be impossible."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategies import chain_problem, context_of

from planner import Objective, Plan, Problem, SearchOptions, Stage
from planner.bounds._places import Places
from planner.bounds.base import BoundQuery
from planner.bounds.pipeline import PipelineBound, _Division
from planner.cluster import Cluster, Device, DeviceType, Link
from planner.costs.model import CostModel
from planner.options import Decision
from planner.simulation.estimate import estimate_plan
from planner.verify import verify
from planner.workload import Recomputation

FAST_BYTES_PER_S, SLOW_BYTES_PER_S = 2.0**40, 1.0


def asked(problem: Problem, options: SearchOptions) -> BoundQuery:
    """What the bound is asked for the problem."""
    context = context_of(problem, options)
    return BoundQuery(
        problem=problem,
        costs=CostModel(problem),
        objective=Objective.ITERATION_TIME,
        batches=tuple(context.batches()),
        replication=options.replication,
        replica_mode=options.replica_mode,
        schedules=("1f1b",),
        searched_levels=context.levels,
    )


def two_kinds_in_pairs() -> Problem:
    """One layer of 1 + 2 s a sample and 64 bytes; of each type one device in each of two pairs with a fast link.

    Between the pairs, and so between devices of one type, there is a slow link.
    """
    base = chain_problem(
        [(1.0, 2.0)], devices=1, num_microbatches=1, parameter_bytes=[64], workload={"global_batch_size": 2}
    )
    cluster = Cluster(
        device_types=tuple(DeviceType(name=kind, memory_bytes=2**40) for kind in ("gpu", "other")),
        devices=(
            Device(id="a0", type="gpu"),
            Device(id="b0", type="other"),
            Device(id="a1", type="gpu"),
            Device(id="b1", type="other"),
        ),
        links=(
            Link(a="a0", b="b0", bandwidth_bytes_per_s=FAST_BYTES_PER_S),
            Link(a="a1", b="b1", bandwidth_bytes_per_s=FAST_BYTES_PER_S),
            Link(a="b0", b="a1", bandwidth_bytes_per_s=SLOW_BYTES_PER_S),
        ),
    )
    profiles = (base.profiles[0], replace(base.profiles[0], device_type="other"))
    work = replace(base.workload, global_batch_size=2, microbatch_size=2)
    return replace(base, cluster=cluster, profiles=profiles, workload=work)


def test_a_ring_may_join_devices_of_two_types() -> None:
    """Both devices of a pair split the batch: 3 s, and an all-reduce over the fast link. Alone, one takes 6 s."""
    problem = two_kinds_in_pairs()
    plan = Plan(
        stages=(Stage(layers=("L0",), replicas=(("a0",), ("b0",))),),
        schedule="1f1b",
        microbatch_size=2,
        num_microbatches=1,
    )
    assert verify(plan, problem) == ()
    seconds = estimate_plan(problem, plan).iteration_time_s
    assert seconds == pytest.approx(3.0)
    bound = PipelineBound().iteration_s(asked(problem, SearchOptions()))
    assert bound is not None
    assert bound <= seconds


def test_a_layer_that_recomputes_alone_may_not_have_to_further_back() -> None:
    """L1 keeps 100 bytes a microbatch. As a stage with one behind it, it holds two and has to recompute in 160 bytes;
    together with L2, as the last stage, it holds one and has not.
    """
    problem = chain_problem(
        [(1.0, 1.0)] * 3,
        devices=3,
        num_microbatches=4,
        output_bytes=[1, 1, 0],
        activation_bytes=[10, 100, 10],
        memory_bytes=160,
        workload={"recomputation": Recomputation.NONE},
    )
    plan = Plan(
        stages=(
            Stage(layers=("L0",), replicas=(("d0",),)),
            Stage(layers=("L1", "L2"), replicas=(("d1",),)),
        ),
        schedule="1f1b",
        microbatch_size=1,
        num_microbatches=4,
    )
    assert verify(plan, problem) == ()
    query = asked(problem, SearchOptions(searched=(Decision.RECOMPUTATION,)))
    rest = _Division(query, Places(query), query.batches[0]).rest
    assert rest.tolist() == [6.0, 4.0, 2.0, 0.0]
    last = CostModel(problem).price(plan).stages[1]
    assert rest[1] <= last.pass_s
