"""plan, estimate and simulate as a whole: certificates, ranking, options, infeasibility, published set-ups."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import L, chain_problem

from planner import (
    InputError,
    Objective,
    Plan,
    Problem,
    Recomputation,
    Replication,
    SearchOptions,
    Stage,
    Status,
    Training,
)
from planner.codec import dumps, fingerprint, loads
from planner.service import estimate, plan, simulate
from planner.verify import verify

CONFIGS = json.loads((Path(__file__).parents[1] / "instances/cases/configs_handed.json").read_text())
CHAIN = [L(f=1, b=2, p=1000, a=100, o=24), L(f=3, b=5, p=10, a=10, o=240), L(f=2, b=4, p=10, a=10, o=48), L(f=1, b=1)]


def training(**options: object) -> Problem:
    return chain_problem(CHAIN, devices=3, microbatches=6, microbatch_size=6, bandwidth_per_ms=1e3, **options)  # type: ignore[arg-type]


def test_a_result_round_trips_and_carries_two_certificates() -> None:
    problem = training()
    result = plan(problem)
    assert loads(type(result), dumps(result)) == result
    quantities = [c.quantity for c in result.report.certificates]
    assert quantities == ["objective_s", "iteration_time_s"]
    assert all(c.gap >= 0 and c.bound_s > 0 for c in result.report.certificates)
    assert result.plan is not None
    assert result.plan.problem_fingerprint == fingerprint(problem)


def test_estimate_of_the_plan_gives_the_same_numbers() -> None:
    problem = training()
    result = plan(problem)
    assert result.plan is not None
    assert estimate(problem, result.plan) == result.estimate
    assert result.estimate is not None
    assert simulate(problem, result.plan).makespan_s == result.estimate.iteration_time_s


def test_the_same_request_gives_the_same_answer() -> None:
    first, second = plan(training()), plan(training())
    assert first.plan == second.plan
    assert first.runners_up == second.runners_up


def test_the_winner_has_the_smallest_simulated_time() -> None:
    result = plan(training(), SearchOptions(num_finalists=30))
    assert result.estimate is not None
    assert all(other.iteration_time_s >= result.estimate.iteration_time_s for other in result.runners_up)
    assert result.runners_up


def test_a_named_optimizer_is_used_alone() -> None:
    result = plan(training(), SearchOptions(optimizer="uniform"))
    assert result.report.optimizer == "uniform"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (SearchOptions(num_stages=0), "num_stages is 0"),
        (SearchOptions(num_stages=4), "between 1 and 3"),
        (SearchOptions(optimizer="cplex"), "unknown optimizer 'cplex'"),
        (SearchOptions(schedule="zigzag"), "unknown schedule 'zigzag'"),
        (SearchOptions(time_limit_s=0.0), "time_limit_s is 0.0"),
        (SearchOptions(time_limit_s=1e9), "between 0.01 and 7200"),
        (SearchOptions(num_finalists=0), "num_finalists is 0"),
    ],
)
def test_bad_options_name_value_and_bound(options: SearchOptions, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan(training(), options)


def test_infeasible_names_stage_and_shortfall_and_a_checked_remedy() -> None:
    layers = [L(f=1, b=2, p=10, a=1000)] * 3
    problem = chain_problem(layers, devices=2, microbatches=4, memory=1500)
    result = plan(problem, SearchOptions(replication=Replication.NONE))
    assert (result.plan, result.report.status) == (None, Status.INFEASIBLE)
    reason = result.report.infeasibility
    assert reason is not None
    assert reason.constraint == "memory"
    assert reason.shortfall_bytes == 1000 + 10 + 1000 + 10 - 1500
    assert "stage" in reason.message
    assert "full recomputation" in reason.remedy
    assert isinstance(problem.workload, Training)
    helped = replace(problem, workload=replace(problem.workload, recomputation=Recomputation.FULL))
    assert plan(helped).plan is not None


def test_unequal_degrees_can_fit_where_equal_ones_do_not() -> None:
    """Splitting the first stage's microbatches over two devices halves what it keeps; three devices suffice."""
    layers = [L(f=1, b=2, p=1, a=800), L(f=1, b=2, p=100)]
    problem = chain_problem(layers, devices=3, microbatches=1, microbatch_size=2, memory=450)
    assert plan(problem, SearchOptions(replication=Replication.NONE)).report.status is Status.INFEASIBLE
    result = plan(problem)
    assert result.plan is not None
    assert len(result.plan.stages[0].replicas) >= 2


def test_devices_without_a_link_are_an_answer() -> None:
    problem = training()
    lonely = replace(problem, cluster=replace(problem.cluster, links=()))
    result = plan(lonely, SearchOptions(num_stages=2))
    assert result.plan is None
    assert result.report.infeasibility is not None
    assert result.report.infeasibility.constraint == "link"
    assert "'d0' and 'd1'" in result.report.infeasibility.message


def test_throughput_ranks_by_the_bottleneck() -> None:
    problem = chain_problem(CHAIN, devices=3, microbatches=6, inference=True)
    result = plan(problem, SearchOptions(objective=Objective.THROUGHPUT))
    assert result.report.status is Status.OPTIMAL
    assert result.estimate is not None
    assert result.estimate.bottleneck_s == pytest.approx(result.report.objective_s or 0)


@pytest.mark.parametrize("row", CONFIGS["megatron_bridge"], ids=lambda row: row["id"])
def test_published_layouts_round_trip_as_plans(row: dict[str, int | str | None]) -> None:
    """Tensor, context and expert degrees and virtual stages of real runs fit into the nouns."""
    tp, pp, cp, dp = (int(row[key] or 1) for key in ("tp", "pp", "cp", "dp"))
    virtual, expert = int(row["vp"] or 1), int(row["ep"] or 1)
    group = tp * cp

    def devices(rank: int, replica: int) -> tuple[str, ...]:
        first = (rank * dp + replica) * group
        return tuple(f"gpu{first + k}" for k in range(group))

    made = Plan(
        stages=tuple(
            Stage(
                layers=(f"chunk{chunk}",),
                replicas=tuple(devices(chunk % pp, replica) for replica in range(dp)),
                tensor=tp,
                context=cp,
                expert=expert,
                zero=1,
            )
            for chunk in range(pp * virtual)
        ),
        schedule="interleaved_1f1b" if virtual > 1 else "1f1b",
        schedule_options={"virtual_stages": virtual} if virtual > 1 else {},
        microbatch_size=int(row["mbs"] or 0) * dp,
        num_microbatches=int(row["microbatches"] or 0),
    )
    assert made.microbatch_size * made.num_microbatches == row["gbs"]
    assert len({d for stage in made.stages for g in stage.replicas for d in g}) == row["gpus"]
    assert (tp * cp * dp) % expert == 0
    assert loads(Plan, dumps(made)) == made


def test_a_plan_for_another_problem_is_refused() -> None:
    result = plan(training())
    assert result.plan is not None
    other = training(zero=1)
    assert [v.code for v in verify(result.plan, other)] == ["fingerprint"]
    with pytest.raises(InputError, match="another problem"):
        estimate(other, result.plan)


def with_memory(problem: Problem, **free: int) -> Problem:
    """The problem with other free memory on some devices."""
    devices = tuple(replace(d, free_memory_bytes=free.get(d.id)) for d in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def test_devices_that_differ_in_memory_only_share_a_stage() -> None:
    """One byte of free memory makes no other kind of device: the replicated plan stays, and is not called optimal."""
    layers = [L(f=f, b=2 * f, p=1_000_000, o=8_000) for f in (1, 2, 3, 4)]
    problem = chain_problem(layers, devices=2, microbatches=1, microbatch_size=8, gradient_bytes=4.0)
    best = plan(problem)
    uneven = plan(with_memory(problem, d0=2**40, d1=2**40 - 1))
    assert best.estimate is not None
    assert uneven.estimate is not None
    assert [len(s.replicas) for s in uneven.plan.stages] == [2] if uneven.plan else False
    assert uneven.estimate.iteration_time_s == best.estimate.iteration_time_s
    assert best.report.status is Status.OPTIMAL


def test_a_stage_on_uneven_devices_obeys_the_smaller_memory() -> None:
    layers = [L(f=1, b=2, p=1000), L(f=1, b=2, p=1000)]
    problem = chain_problem(layers, devices=2, microbatches=1, microbatch_size=2)
    result = plan(with_memory(problem, d0=2**30, d1=1500))
    assert result.plan is not None
    assert verify(result.plan, with_memory(problem, d0=2**30, d1=1500)) == ()


@pytest.mark.parametrize("zero", [-1, 4, 9])
def test_a_zero_stage_that_does_not_exist_is_refused(zero: int) -> None:
    result = plan(training())
    assert result.plan is not None
    stages = tuple(replace(stage, zero=zero) for stage in result.plan.stages)
    with pytest.raises(InputError, match=f"ZeRO stage {zero}"):
        estimate(training(), replace(result.plan, stages=stages))


def test_few_microbatches_run_under_gpipe() -> None:
    """Engines have no 1F1B for fewer microbatches than stages; both take the same time here."""
    problem = chain_problem([L(f=1, b=2, p=1)] * 4, devices=4, microbatches=2)
    result = plan(problem, SearchOptions(num_stages=4))
    assert result.plan is not None
    assert (result.plan.num_microbatches, result.plan.schedule) == (2, "gpipe")


def test_colocation_that_leaves_too_few_cuts_is_named() -> None:
    problem = training()
    tied = replace(problem, graph=replace(problem.graph, colocated=(("layer0", "layer3"),)))
    result = plan(tied, SearchOptions(num_stages=2))
    assert result.report.infeasibility is not None
    assert result.report.infeasibility.constraint == "colocated"
