"""Bounds on the bottleneck against the optimum by definition: never above it, and equal where theory says so."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_partitions import optimum_s, random_instance

from benchmarks.wide_graphs import wide_graph
from planner.bounds._blocks import blocks_of, heaviest_below
from planner.bounds._budget import Budget
from planner.bounds._cells import CellLp, Space
from planner.bounds._linear import Linear, Session, mip_bound
from planner.bounds.bottleneck import best_bound
from planner.bounds.capacity import capacity
from planner.bounds.configuration import configuration
from planner.bounds.node import node
from planner.bounds.pigeonhole import average, pigeonhole
from planner.bounds.refutation import refutation
from planner.bounds.stages import relaxed_stages, stages
from planner.bounds.three_superblock import three_superblock
from planner.ideals import Groups
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass

SEEDS = st.integers(0, 10**9)
SOLVERS = ("highs", "cbc")
ABOVE = 1 + 1e-12
SOLVER_GAP = 1e-5
LIMIT_S = 60.0


def configurations(instance: BottleneckInstance, upper: float, budget: Budget) -> float:
    return configuration(instance, upper, budget, known=average(instance, upper)).value_s


WITH_LPS = {f.__name__: f for f in (average, pigeonhole, node, capacity, configurations, refutation, relaxed_stages)}
WITH_MIPS = {f.__name__: f for f in (three_superblock, stages)}


def uppers(instance: BottleneckInstance) -> tuple[float, list[float]]:
    """The optimum, and values of known plans: itself and worse ones; anything where nothing fits."""
    best = optimum_s(instance)
    return best, [20.0] if math.isinf(best) else [best, 1.3 * best + 0.5] if best else []


def chain(work: list[float], costs: list[float], *classes: DeviceClass) -> BottleneckInstance:
    """A chain of groups with a tensor between neighbours."""
    count = len(work)
    return BottleneckInstance(
        groups=Groups(
            layers=tuple((g,) for g in range(count)),
            of_layer=tuple(range(count)),
            before=tuple(1 << g - 1 if g else 0 for g in range(count)),
            after=tuple(1 << g + 1 if g + 1 < count else 0 for g in range(count)),
        ),
        cuts=tuple(Cut(groups=3 << g, cost_s=cost) for g, cost in enumerate(costs)),
        classes=classes,
    )


def devices(count: int, work: list[float], *, pays: bool = True, overhead: float = 0.0) -> DeviceClass:
    return DeviceClass(
        count=count, work_s=work, size_bytes=[0] * len(work), limit_bytes=0, overhead_s=overhead, pays=pays
    )


@pytest.mark.parametrize("name", WITH_LPS)
@settings(max_examples=300, deadline=None)
@given(seed=SEEDS)
def test_no_bound_is_above_the_optimum(name: str, seed: int) -> None:
    instance = random_instance(seed, most=6)
    best, known = uppers(instance)
    for upper in known:
        assert WITH_LPS[name](instance, upper, Budget(LIMIT_S)) <= min(best, upper) * ABOVE


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", WITH_MIPS)
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
def test_no_bound_of_a_mip_is_above_the_optimum(name: str, solver: str, seed: int) -> None:
    instance = random_instance(seed, most=6)
    best, known = uppers(instance)
    for upper in known:
        assert WITH_MIPS[name](instance, upper, Budget(LIMIT_S, solver=solver)) <= min(best, upper) * ABOVE


@pytest.mark.parametrize("name", ["node", "capacity", "configurations", "relaxed_stages"])
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_no_bound_of_cbc_is_above_the_optimum(name: str, seed: int) -> None:
    instance = random_instance(seed, most=4)
    best, known = uppers(instance)
    for upper in known[:1]:
        assert WITH_LPS[name](instance, upper, Budget(5.0, solver="cbc")) <= min(best, upper) * ABOVE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000))
def test_no_bound_is_above_the_optimum_at_length(seed: int) -> None:
    instance = random_instance(seed, most=7)
    best, known = uppers(instance)
    for bound, upper in itertools.product(WITH_LPS.values(), known):
        assert bound(instance, upper, Budget(LIMIT_S)) <= min(best, upper) * ABOVE


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_the_best_bound_is_sound_and_names_its_proof(seed: int) -> None:
    instance = random_instance(seed, most=5)
    best, known = uppers(instance)
    for upper in known:
        found = best_bound(instance, upper, LIMIT_S)
        assert found.value_s <= min(best, upper) * ABOVE
        assert found.name in {trial.name for trial in found.trials} | {"none"}


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=20, deadline=None)
@given(work=st.lists(st.integers(1, 9), min_size=1, max_size=6), cost=st.integers(0, 5), count=st.integers(1, 4))
def test_all_stages_at_once_are_the_optimum(solver: str, work: list[int], cost: int, count: int) -> None:
    instance = chain([*map(float, work)], [float(cost)] * (len(work) - 1), devices(count, [*map(float, work)]))
    best = optimum_s(instance)
    assert stages(instance, best, Budget(LIMIT_S, solver=solver)) >= best * (1 - SOLVER_GAP)


@settings(max_examples=60, deadline=None)
@given(work=st.lists(st.integers(1, 9), min_size=1, max_size=6), cost=st.integers(0, 5))
def test_with_a_stage_per_group_the_node_bound_of_all_groups_is_not_above_and_alone_exact(
    work: list[int], cost: int
) -> None:
    """One group: the bound is its work. More: at most the optimum, at least the heaviest group."""
    instance = chain([*map(float, work)], [float(cost)] * (len(work) - 1), devices(len(work), [*map(float, work)]))
    best = optimum_s(instance)
    found = node(instance, best, Budget(LIMIT_S), num_groups=len(work))
    assert max(work) * (1 - SOLVER_GAP) <= found <= best * ABOVE


def test_pigeonholes_by_hand() -> None:
    """Four groups of 5 on three devices: two share a stage. The average says 20 / 3."""
    instance = chain([5.0] * 4, [0.0] * 3, devices(3, [5.0] * 4))
    assert pigeonhole(instance) == pytest.approx(10.0)
    assert average(instance) == pytest.approx(20 / 3)


def test_the_node_bound_sees_heavy_tensors() -> None:
    """A chain 1 -9- 1 -9- 1 on three devices: apart costs 10 or more, together 3."""
    instance = chain([1.0] * 3, [9.0] * 2, devices(3, [1.0] * 3))
    assert optimum_s(instance) == 3.0
    assert node(instance, 3.0, Budget(LIMIT_S)) == pytest.approx(3.0)
    assert pigeonhole(instance) == pytest.approx(1.0)


def test_configurations_balance_cheap_ends_and_dear_middles() -> None:
    """Twelve groups of 1 with tensors of 1 on four devices: ends pay once, middles twice; no average knows."""
    instance = chain([1.0] * 12, [1.0] * 11, devices(4, [1.0] * 12))
    best = optimum_s(instance)
    found = configurations(instance, best, Budget(LIMIT_S))
    assert average(instance) == pytest.approx(3.0)
    assert found > 1.2 * average(instance)
    assert found <= best * ABOVE


def test_a_bound_of_configurations_can_be_checked_from_its_weights() -> None:
    """All blocks below the bound weigh less than their share: by enumeration of the intervals of a chain."""
    instance = chain([1.0] * 8, [1.0] * 7, devices(3, [1.0] * 8))
    found = configuration(instance, optimum_s(instance), Budget(LIMIT_S), known=average(instance))
    blocks = blocks_of(instance)
    intervals = [(1 << b) - (1 << a) for a in range(8) for b in range(a + 1, 9)]
    below = [block for block in intervals if blocks.cost(block) < found.value_s * (1 - 1e-9)]
    heaviest = max(sum(w for g, w in enumerate(found.weights) if block >> g & 1) for block in below)
    assert found.num_cells >= 8
    assert 3 * heaviest < sum(found.weights)


def test_a_free_device_takes_what_its_time_allows() -> None:
    """Work 4 and 6 on one paying device; a free one, half as fast, holds up to T of its own seconds."""
    instance = chain([4.0, 6.0], [1.0], devices(1, [4.0, 6.0]), devices(1, [8.0, 12.0], pays=False))
    free = blocks_of(instance).free[0]
    assert heaviest_below([4.0, 6.0], free, 8.0) == pytest.approx(4.0)
    assert average(instance) == pytest.approx(20 / 3)
    assert average(instance) <= optimum_s(instance)


def test_duals_prove_a_bound_however_wrong_they_are() -> None:
    """min x + y with x + y >= 1: any duals give at most 1, the right ones 1."""
    model = Linear()
    x, y = model.add(1.0), model.add(1.0)
    model.row([(x, 1.0), (y, 1.0)], low=1.0)
    session = Session(model, Budget(LIMIT_S, solver="highs"))
    assert session.solve().bound == pytest.approx(1.0)
    assert session.solve().bound <= 1.0
    lows, highs = np.zeros(2), np.ones(2)
    for dual in (-3.0, 0.0, 0.5, 1.0, 7.0):
        assert session.duals.value(np.array([dual]), lows, highs) <= 1.0


@pytest.mark.parametrize("solver", SOLVERS)
def test_lp_and_mip_of_both_solvers(solver: str) -> None:
    """min x with 2 x >= 1: 0.5 as an LP, 1 as a MIP; 2 x >= 3 has no solution."""
    model = Linear()
    x = model.add(1.0, integer=True)
    model.row([(x, 2.0)], low=1.0)
    budget = Budget(LIMIT_S, solver=solver)
    assert Session(model, budget).solve().bound == pytest.approx(0.5, abs=2 * SOLVER_GAP)
    found = mip_bound(model, budget)
    assert found is not None
    assert found == pytest.approx(1.0, abs=2 * SOLVER_GAP)
    model.row([(x, 2.0)], low=3.0)
    assert Session(model, budget).solve().bound == math.inf
    assert mip_bound(model, budget) == math.inf


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_cells_hold_every_block_below(seed: int) -> None:
    """Every convex set below T is in the cell of its last group, and weighs no more than the cell's LP says."""
    instance = random_instance(seed, most=6)
    blocks = blocks_of(instance)
    if blocks.num_paying == 0:
        return
    below = 0.5 * sum(work for work in blocks.work if math.isfinite(work)) + 3.0
    space, weights = Space(blocks, below), [1.0 + g for g in range(len(blocks))]
    cells = {g: space.anchored(g) for g in range(len(blocks))}
    lps = {g: CellLp(space, cell, weights, Budget(LIMIT_S)) for g, cell in cells.items() if cell is not None}
    for block in range(1, space.everything + 1):
        ahead, behind = space.around(block)
        if ahead & behind != block or block & space.unable or blocks.cost(block) >= below:
            continue
        last = block.bit_length() - 1
        cell = cells[last]
        assert cell is not None
        assert not cell.inside & ~block
        assert not cell.outside & block
        weight = sum(weights[g] for g in range(len(blocks)) if block >> g & 1)
        assert weight <= lps[last].most(cell)[0] + 1e-9


def test_a_search_without_time_proves_nothing_and_is_at_once_over() -> None:
    instance = wide_graph(60, 6, "rand", 0.5, 0, 8)
    found = best_bound(instance, 20.0, 0.0)
    assert [trial.name for trial in found.trials] == ["work"]
    assert found.value_s == pytest.approx(average(instance, 20.0))


def test_the_same_seed_gives_the_same_graph_and_the_wide_bounds_beat_the_average() -> None:
    instance = wide_graph(40, 5, "branch", 2.0, 1, 5)
    assert instance == wide_graph(40, 5, "branch", 2.0, 1, 5)
    assert instance != wide_graph(40, 5, "branch", 2.0, 2, 5)
    upper = 2.0 * average(instance)
    found = best_bound(instance, upper, 4.0, exact=False, clock=time.process_time)
    assert average(instance) * 1.02 < found.value_s <= upper
