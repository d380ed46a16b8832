"""Two profiles side by side: stages in a row, the limit, and what the reference workload says."""

import dataclasses

import pytest

from planner.errors import InputError
from planner.graph import Layer, LayerGraph
from planner.profile import CostTable, LayerCost, Measurement, Profile
from profiles.agreement import agreements
from profiles.model import ProfiledModel


def profiled(seconds, *, reference_s=0.001, drift=0.0, size=1, device_type="cpu-core"):
    """Layers a, b, c, ... that take a third of `seconds` forward and the rest backward."""
    names = [chr(ord("a") + number) for number in range(len(seconds))]
    costs = {n: LayerCost(forward_s=s / 3, backward_s=2 * s / 3) for n, s in zip(names, seconds, strict=True)}
    measurement = Measurement(num_chains=16, reference_s=reference_s, drift=drift)
    table = CostTable(microbatch_size=size, layers=costs, measurement=measurement)
    graph = LayerGraph(layers=tuple(Layer(id=name) for name in names))
    return ProfiledModel(graph=graph, profiles=(Profile(device_type=device_type, tables=(table,)),))


def test_stages_are_rows_of_layers_as_equal_as_layers_allow():
    (found,) = agreements(profiled([1.0] * 8), profiled([1.0] * 8), num_stages=4)
    assert [stage.layers for stage in found.stages] == [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]
    (heavy,) = agreements(profiled([1.0, 1.0, 6.0]), profiled([1.0, 1.0, 6.0]), num_stages=2)
    assert [stage.layers for stage in heavy.stages] == [("a", "b"), ("c",)]


def test_what_evens_out_within_a_stage_agrees():
    (found,) = agreements(profiled([1.0, 1.0, 1.0, 1.0]), profiled([1.05, 0.95, 1.02, 1.02]), num_stages=2)
    assert [round(stage.apart, 6) for stage in found.stages] == [0.0, 0.02]
    assert found.agrees
    assert "2.0% apart, the profiles agree (limit 3%)" in found.verdict()


def test_a_host_that_drifted_is_said():
    (found,) = agreements(profiled([1.0, 1.0]), profiled([1.1, 1.1], reference_s=0.0011))
    assert not found.agrees
    assert found.drifted
    assert "10.0% apart, the host drifted (reference workload +10.0%" in found.verdict()


@pytest.mark.parametrize(("reference_s", "said"), [(0.00102, False), (0.00104, True)])
def test_the_reference_workload_is_taken_at_the_same_limit(reference_s, said):
    (found,) = agreements(profiled([1.0, 1.0]), profiled([1.04, 1.04], reference_s=reference_s))
    assert not found.agrees
    assert found.drifted is said


def test_drift_within_one_measurement_is_said():
    (found,) = agreements(profiled([1.0, 1.0], drift=0.08), profiled([1.1, 1.1]))
    assert "the host drifted (reference workload +0.0%, 8.0% between halves" in found.verdict()


def test_a_difference_without_drift_is_no_drift():
    (found,) = agreements(profiled([1.0, 1.0]), profiled([1.1, 1.1]))
    assert "no drift of the host was seen" in found.verdict()


def test_imported_profiles_have_no_reference():
    imported = profiled([1.0, 1.0])
    (profile,) = imported.profiles
    bare = dataclasses.replace(profile, tables=(dataclasses.replace(profile.tables[0], measurement=None),))
    (found,) = agreements(dataclasses.replace(imported, profiles=(bare,)), profiled([2.0, 2.0]))
    assert found.reference is None
    assert "no reference workload in one of the two" in found.verdict()


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (profiled([1.0]), "different layers"),
        (profiled([1.0, 1.0], size=2), "share no device type and microbatch size"),
        (profiled([1.0, 1.0], device_type="T4"), "share no device type and microbatch size"),
    ],
)
def test_profiles_that_cannot_be_compared_are_refused(later, words):
    with pytest.raises(InputError, match=words):
        agreements(profiled([1.0, 1.0]), later)
