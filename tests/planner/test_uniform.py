"""`uniform`: equal layer counts with a stated remainder, all devices, no claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import chain_problem, context_of, search

from planner.optimizers.base import OPTIMIZERS
from planner.optimizers.uniform import equal_sizes
from planner.options import Replication, SearchOptions


@given(layers=st.integers(1, 200), stages=st.integers(1, 64))
def test_sizes_are_equal_up_to_one_and_cover_all_layers(layers: int, stages: int) -> None:
    sizes = equal_sizes(layers, stages)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)  # the remainder goes to the first stages


def test_thirty_layers_on_four_stages() -> None:
    """Case H01: dropping the remainder (7, 7, 7, 7) loses two layers."""
    assert equal_sizes(30, 4) == [8, 8, 7, 7]


def test_every_divisor_of_the_devices_is_tried() -> None:
    problem = chain_problem([(1.0, 2.0)] * 8, devices=4, num_microbatches=4, microbatch_size=4)
    outcome = search("uniform", problem, SearchOptions())
    shapes = {(len(c.plan.stages), len(c.plan.stages[0].replicas)) for c in outcome.candidates}
    assert shapes == {(1, 4), (2, 2), (4, 1)}
    assert outcome.candidates[0].objective_s == min(c.objective_s for c in outcome.candidates)
    assert not outcome.exact
    assert outcome.bound_s is None
    for candidate in outcome.candidates:
        used = [d for stage in candidate.plan.stages for group in stage.replicas for d in group]
        assert used == ["d0", "d1", "d2", "d3"]


def test_stage_count_and_replication_are_honoured() -> None:
    problem = chain_problem([(1.0, 2.0)] * 8, devices=4, num_microbatches=4, microbatch_size=4)
    two = search("uniform", problem, SearchOptions(num_stages=2))
    assert {len(c.plan.stages) for c in two.candidates} == {2}
    straight = search("uniform", problem, SearchOptions(replication=Replication.NONE))
    assert {len(c.plan.stages) for c in straight.candidates} == {4}
    assert search("uniform", problem, SearchOptions(num_stages=3)).candidates == ()


def test_a_split_that_does_not_fit_is_no_candidate() -> None:
    problem = chain_problem(
        [(1.0, 2.0)] * 4, devices=2, num_microbatches=2, parameter_bytes=[40, 4, 4, 4], memory_bytes=100
    )
    outcome = search("uniform", problem, SearchOptions())
    assert outcome.candidates == ()
    assert outcome.notes == ("no equal split of all devices fits",)


def test_tensor_groups_are_whole() -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=4, num_microbatches=2)
    grouped = replace(problem, workload=replace(problem.workload, tensor=2))
    stages = search("uniform", grouped, SearchOptions()).candidates[0].plan.stages
    assert [stage.replicas for stage in stages] == [(("d0", "d1"),), (("d2", "d3"),)]
    lonely = replace(problem, cluster=chain_problem([(1, 1)], devices=4, num_microbatches=1).cluster)
    assert OPTIMIZERS["uniform"].supports(context_of(lonely, SearchOptions())) == ""


@pytest.mark.parametrize("devices", [1, 3, 5])
def test_odd_device_counts(devices: int) -> None:
    problem = chain_problem([(1.0, 2.0)] * 7, devices=devices, num_microbatches=15, microbatch_size=15)
    for candidate in search("uniform", problem, SearchOptions()).candidates:
        assert len(candidate.plan.stages) * len(candidate.plan.stages[0].replicas) == devices
