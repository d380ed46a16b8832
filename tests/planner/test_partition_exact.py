"""The exact pass, its windows and the contractions against the optimum by definition."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_partitions import optimum_s, random_instance, value_s

from planner.errors import LimitError
from planner.ideals import Groups, enumerate_ideals
from planner.partition import exact_pass
from planner.partition.contraction import contract
from planner.partition.exact import minimise
from planner.partition.exact_pass import alive_ideals, improve, refute, solve
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass
from planner.partition.upper_bound import boundaries
from planner.partition.windows import Windows

SEEDS = st.integers(0, 10**9)


def check(instance):
    """Plain and contracted, with memory and without, at, below and above the optimum."""
    best = optimum_s(instance)
    check_pass(instance, instance, best)
    held = contract(instance, keep_memory=True)
    check_pass(held.instance, instance, best, held)
    light = without_memory(instance)
    least = optimum_s(light)
    assert least <= best
    check_pass(contract(instance, keep_memory=False).instance, light, least, contract(light, keep_memory=False))
    for keep_memory, whole, value in ((True, instance, best), (False, light, least)):
        check_below(whole, value, keep_memory)


def check_pass(instance, whole, best, contraction=None):
    """`solve` finds `best` (of `whole`), `refute` proves it and nothing more."""
    found = solve(instance, None)
    if math.isinf(best):
        assert found is None
        assert refute(instance, 1e6)
        return
    assert found.finished
    assert found.value_s == pytest.approx(best)
    stages = found.stages
    if contraction is not None:
        spread = contraction.expand([stage for _, stage in stages])
        stages = [(c, stage) for (c, _), stage in zip(stages, spread, strict=True)]
    assert value_s(whole, stages) == pytest.approx(best)
    assert refute(instance, best)
    assert not refute(instance, best * 1.001 + 1e-3)


def check_below(whole, best, keep_memory):
    """With R4 for several T: the same optimum below T, nothing at T = optimum."""
    for below in (best, best * 1.0001 + 1e-3, best * 1.3 + 0.5, best * 2 + 1) if math.isfinite(best) else (50.0,):
        small = contract(whole, below=below, keep_memory=keep_memory)
        found, finished = improve(small.instance, enumerate_ideals(small.instance.groups, 2**9), below)
        assert finished
        if best < below:
            assert found.value_s == pytest.approx(best)
            spread = small.expand([stage for _, stage in found.stages])
            stages = [(c, stage) for (c, _), stage in zip(found.stages, spread, strict=True)]
            assert value_s(whole, stages) == pytest.approx(best)
        else:
            assert found is None


def without_memory(instance):
    classes = tuple(dataclasses.replace(c, size_bytes=[0] * len(instance.groups)) for c in instance.classes)
    cuts = tuple(dataclasses.replace(cut, received_bytes=0, returned_bytes=0) for cut in instance.cuts)
    return dataclasses.replace(instance, classes=classes, cuts=cuts)


@settings(max_examples=300)
@given(SEEDS)
def test_the_exact_method_equals_brute_force(seed):
    check(random_instance(seed, most=6))


@settings(max_examples=300)
@given(SEEDS)
def test_from_end_to_end_it_equals_brute_force(seed):
    instance = random_instance(seed, most=6)
    best, found = optimum_s(instance), minimise(instance, seed=seed)
    assert found.proven
    assert found.note == ""
    if math.isinf(best):
        assert found.best is None
        assert math.isinf(found.bound_s)
    else:
        assert found.best.value_s == pytest.approx(best)
        assert value_s(instance, found.best.stages) == pytest.approx(best)
        assert found.bound_s == pytest.approx(best)


@given(SEEDS)
def test_the_boundaries_of_a_partition_below_t_are_alive(seed):
    instance = random_instance(seed, most=7)
    found = solve(instance, None)
    if found is not None and found.value_s:
        windows = Windows(instance, found.value_s * 1.0001)
        ideals = [0, *boundaries(found)]
        assert alive_ideals(instance, ideals, windows) == ideals


def test_windows_by_hand():
    """A chain of four groups of 1 s and tensors of 0.5 s, T = 2.6: a cut in the middle costs 2.5 s on both sides."""
    windows = Windows(chain_of((1.0,) * 4, 0.5, DeviceClass(count=2, **blank(4))), 2.6)
    work, crossing = np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.5, 0.5, 0.5, 0.0])
    assert windows.before(work, crossing).tolist() == [[0, 1, 1, 2, 2]]
    assert windows.after(work, crossing).tolist() == [[2, 2, 1, 1, 0]]
    assert windows.alive(work, crossing).tolist() == [True, False, True, False, True]


def test_a_cpu_takes_what_its_time_allows():
    """Of four groups it runs 2.6 / 1.2, at 1.2 s each in 2.6 s; crossing costs count on the other side only."""
    cpu = DeviceClass(count=1, work_s=[1.2] * 4, size_bytes=[0] * 4, limit_bytes=0, pays=False)
    windows = Windows(chain_of((1.0,) * 4, 0.5, DeviceClass(count=1, **blank(4)), cpu), 2.6)
    assert windows.taken_s[1] == pytest.approx(2.6 / 1.2)
    work, crossing = np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.5, 0.5, 0.5, 0.0])
    assert windows.alive(work, crossing).tolist() == [True, False, True, False, True]
    assert windows.before(work, crossing)[1].tolist() == [0, 0, 0, 1, 1]


def chain_of(work_s, cost_s, *classes):
    count = len(work_s)
    return BottleneckInstance(
        groups=Groups(
            layers=tuple((g,) for g in range(count)),
            of_layer=tuple(range(count)),
            before=tuple((1 << g) >> 1 for g in range(count)),
            after=tuple(2 << g if g + 1 < count else 0 for g in range(count)),
        ),
        cuts=tuple(Cut(groups=3 << g, cost_s=cost_s) for g in range(count - 1)),
        classes=tuple(dataclasses.replace(c, work_s=list(work_s)) if c.pays else c for c in classes),
    )


def blank(count):
    return {"work_s": [0.0] * count, "size_bytes": [0] * count, "limit_bytes": 0}


def test_more_ideals_than_the_limit_are_refused_with_the_count():
    groups = Groups(layers=((0,),) * 20, of_layer=(0,) * 20, before=(0,) * 20, after=(0,) * 20)
    classes = (DeviceClass(count=2, work_s=[1.0] * 20, size_bytes=[0] * 20, limit_bytes=0),)
    wide = BottleneckInstance(groups=groups, cuts=(), classes=classes)
    with pytest.raises(LimitError, match="the graph of 20 groups has more than 1000 ideals"):
        solve(wide, None, max_ideals=1000)
    found = minimise(wide, max_ideals=1000)
    assert found.best.value_s == 10.0
    assert "more than 1000 ideals" in found.note
    assert not found.proven


def test_a_table_that_is_too_large_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(exact_pass, "MAX_CELLS", 10)
    kind = DeviceClass(count=3, **blank(9))
    with pytest.raises(LimitError, match="10 ideals of 9 groups with 1 counts of used devices take"):
        solve(chain_of((1.0,) * 9, 0.5, kind), None)
    with pytest.raises(LimitError, match="10 ideals of 9 groups with 16 counts of used devices take"):
        solve(chain_of((1.0,) * 9, 0.5, kind, kind), None)


def test_many_kinds_of_devices_are_refused_with_their_counts():
    kind = DeviceClass(count=3, **blank(9))
    with pytest.raises(LimitError, match="7 device classes of"):
        solve(chain_of((1.0,) * 9, 0.5, *[kind] * 7), None)


def test_an_expired_clock_claims_nothing():
    chain = chain_of((1.0,) * 9, 0.5, DeviceClass(count=3, **blank(9)))
    assert not refute(chain, 3.9, expired=lambda: True)
    upper = solve(chain, None)
    stopped = solve(chain, dataclasses.replace(upper, value_s=9.0), expired=lambda: True)
    assert not stopped.finished
    assert refute(chain, 3.9)


def test_sums_that_floats_cannot_hold_stay_exact():
    size = 2**60
    kind = DeviceClass(count=2, work_s=[1.0] * 4, size_bytes=[size, size, size, size + 1], limit_bytes=2 * size)
    assert solve(chain_of((1.0,) * 4, 0.5, kind), None) is None
    roomy = dataclasses.replace(kind, limit_bytes=2 * size + 1)
    assert solve(chain_of((1.0,) * 4, 0.5, roomy), None).value_s == 2.5
