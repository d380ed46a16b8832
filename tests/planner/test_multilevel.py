"""Coarse problems price as the fine ones do, and long chains get plans close to the bound."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from builders import flat_cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import chain_problems, dag_problems

from planner import (
    CostTable,
    Edge,
    Layer,
    LayerCost,
    LayerGraph,
    Problem,
    Profile,
    Replication,
    SearchOptions,
    Training,
)
from planner.coarsening import coarsened, fixed_boundaries
from planner.costs.model import CostModel
from planner.costs.objective import objective_s
from planner.options import Objective, SearchModel
from planner.plan import Plan, Stage
from planner.service import plan
from planner.verify import verify


@settings(max_examples=150, deadline=None)
@given(st.one_of(chain_problems(), dag_problems()), st.data())
def test_a_coarse_plan_has_the_price_of_its_fine_plan(problem: Problem, data: st.DataObject) -> None:
    n = len(problem.index)
    chosen = data.draw(st.sets(st.integers(1, max(1, n - 1))))
    coarse = coarsened(problem, sorted({*fixed_boundaries(problem), *(b for b in chosen if b < n)}))
    blocks = [layer.id for layer in coarse.problem.index.layers]
    device = problem.cluster.devices[0].id
    samples = problem.workload.global_batch_size
    one = Plan(
        stages=(Stage(layers=tuple(blocks), replicas=((device,),)),),
        schedule="1f1b",
        microbatch_size=samples,
        num_microbatches=1,
    )
    fine = coarse.refined(one)
    assert sorted(fine.stages[0].layers) == sorted(problem.index.position)
    a, b = CostModel(coarse.problem).price(one), CostModel(problem).price(fine)
    value = [
        objective_s(p, priced, Objective.ITERATION_TIME, SearchModel.CLOSED)
        for p, priced in ((coarse.problem, a), (problem, b))
    ]
    assert value[0] == pytest.approx(value[1], rel=1e-9, abs=1e-12)
    assert a.stages[0].memory.weights_bytes == b.stages[0].memory.weights_bytes
    assert a.stages[0].parts.weight_pass_bytes == b.stages[0].parts.weight_pass_bytes


def long_chain(count: int, devices: int) -> Problem:
    """A chain with side branches, seeded: every tenth layer feeds a side layer that joins two layers later."""
    rng = random.Random(1)
    names = [f"l{i}" for i in range(count)]
    edges = [Edge(source=a, target=b, bytes_per_sample=rng.randrange(10**5, 10**6)) for a, b in pairwise(names)]
    edges += [
        Edge(source=names[i], target=names[i + 3], tensor="side", bytes_per_sample=1000)
        for i in range(0, count - 3, 10)
    ]
    costs = {
        name: LayerCost(
            forward_s=rng.lognormvariate(0, 0.6) * 1e-3,
            backward_s=rng.lognormvariate(0, 0.6) * 2e-3,
            activation_bytes=rng.randrange(10**5),
        )
        for name in names
    }
    return Problem(
        graph=LayerGraph(layers=tuple(Layer(id=name, parameter_bytes=1000) for name in names), edges=tuple(edges)),
        profiles=(Profile(device_type="device", tables=(CostTable(microbatch_size=1, layers=costs),)),),
        cluster=flat_cluster(devices, bandwidth=1e11),
        workload=Training(global_batch_size=64, microbatch_size=1),
    )


def test_a_long_chain_is_planned_close_to_its_bound() -> None:
    problem = long_chain(1600, 8)
    result = plan(problem, SearchOptions(num_stages=8, replication=Replication.NONE, optimizer="multilevel"))
    assert result.plan is not None
    assert verify(result.plan, problem) == ()
    assert result.report.gap is not None
    assert result.report.gap < 0.01
    simulated = next(c for c in result.report.certificates if c.quantity == "iteration_time_s")
    assert simulated.gap < 0.01


def test_chain_dp_refuses_what_its_tables_do_not_hold() -> None:
    from planner.errors import InputError

    with pytest.raises(InputError, match=r"use auto or one of .*multilevel"):
        plan(long_chain(1600, 2), SearchOptions(optimizer="chain_dp"))
