"""The exact pass, its windows and the contractions against the optimum by definition."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_partitions import optimum_s, random_instance, value_s

from planner.ideals import enumerate_ideals
from planner.partition.contraction import contract
from planner.partition.exact_pass import improve, refute, solve

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


@given(SEEDS)
def test_the_exact_method_equals_brute_force(seed):
    check(random_instance(seed, most=7))
