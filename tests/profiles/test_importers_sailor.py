"""Sailor's profiles: every figure comes through in our units, and bad files are named with their fields."""

import json
from pathlib import Path

import pytest

from planner import codec
from planner.errors import InputError
from profiles.clusters import parse_cluster
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.importers.reading import read_path
from profiles.importers.sailor import CATALOGUE_NAMES
from profiles.model import ProfiledModel
from profiles.sources import build_problem

FOLDER = Path(__file__).parents[1] / "instances" / "sailor"
SIZES = {"params_floats": 6, "params_bytes": 24, "act_output_bytes": 40, "act_mem_bytes": 100, "act_input_bytes": 1}
PART = SIZES | {"params_floats": 4, "params_bytes": 16, "act_mem_bytes": 60}
TIMES = {"3": {"1": {"0": [1.0, 2.0, 0.5], "1": [3.0, 4.0, 0.25]}, "4": {"0": [0.5, 1, 0], "1": [0.25, 1, 0]}}}


def files(times=TIMES, sizes=None, **more):
    """A small valid set of files: two layers, one GPU."""
    sizes = {"net": {"1": {"0": SIZES, "1": SIZES}, "2": {"0": PART, "1": PART}}} if sizes is None else sizes
    values = {"net/gpu/profile.json": times, "llm_info.json": sizes} | more
    return {path: json.dumps(value).encode() for path, value in values.items()}


def read(**changes):
    return IMPORTERS["sailor"].read_files(files(**changes), ImportOptions())


def assert_faithful(folder, name):
    """Everything recomputed from the raw JSON."""
    sizes = json.loads((folder / "llm_info.json").read_text())[name]
    model = read_path(folder, options=ImportOptions(model=name))
    count = len(sizes["1"])
    assert [layer.parameter_bytes for layer in model.graph.layers] == [
        4 * sizes["1"][str(i)]["params_floats"] for i in range(count)
    ]
    for i, layer in enumerate(model.graph.layers):
        divided = layer.parameter_bytes - layer.replicated_parameter_bytes
        degree = min(int(t) for t in sizes if t != "1")
        stored = sizes[str(degree)][str(i)]["params_bytes"]
        assert layer.replicated_parameter_bytes + divided / degree == pytest.approx(stored, abs=2)
    assert [e.bytes_per_sample for e in model.graph.edges] == [
        sizes["1"][str(i)]["act_output_bytes"] for i in range(count - 1)
    ]
    gpus = sorted(path.parent.name for path in (folder / "profiles" / name).glob("*/profile.json"))
    assert sorted(p.device_type for p in model.profiles) == sorted(CATALOGUE_NAMES.get(gpu, gpu) for gpu in gpus)
    for gpu in gpus:
        raw = json.loads((folder / "profiles" / name / gpu / "profile.json").read_text())
        (profile,) = (p for p in model.profiles if p.device_type == CATALOGUE_NAMES.get(gpu, gpu))
        assert len(profile.tables) == sum(len(degrees) for degrees in raw.values())
        for table in profile.tables:
            layers = raw[str(table.microbatch_size)][str(table.tensor)]
            known = max(int(t) for t in sizes if int(t) <= table.tensor)
            for i in range(count):
                cost = table.layers[f"layer.{i}"]
                assert [cost.forward_s, cost.backward_s, cost.optimizer_s] == layers[str(i)]
                kept = sizes[str(known)][str(i)]["act_mem_bytes"]
                assert cost.activation_bytes == kept * table.microbatch_size
    assert codec.loads(ProfiledModel, codec.dumps(model)) == model
    assert read_text(codec.dumps(model)) == model


def test_every_figure_of_the_files_comes_through():
    assert_faithful(FOLDER, "OPT-350")


@pytest.mark.parametrize("name", ["OPT-350", "OPT-30"])
def test_the_files_beside_the_repository_come_through(shared_bench, name):
    assert_faithful(shared_bench / "sailor", name)


def test_traps_are_said():
    model = read_path(FOLDER)
    for profile in model.profiles:
        notes = " ".join(profile.provenance.notes)
        assert "of one sample" in notes
        assert "divided evenly" in notes
        assert "Sailor calls the device" in notes
    assert (model.workload.global_batch_size, model.workload.sequence_length) == (1024, 2048)
    assert {table.sequence_length for profile in model.profiles for table in profile.tables} == {2048}


def test_layers_are_those_of_a_measured_run_and_can_be_planned():
    """26 layers, although the configuration counts 24: the embedding and the head are layers of their own."""
    model = read_path(FOLDER, options=ImportOptions(device_type="A100-40"))
    assert len(model.graph.layers) == 26
    problem = build_problem(model, parse_cluster("4xA100-40G-SXM"), None)
    assert len(problem.index) == 26


def test_a_small_set_of_files():
    model = read()
    assert [layer.parameter_bytes for layer in model.graph.layers] == [24, 24]
    assert model.graph.layers[0].replicated_parameter_bytes == 8  # 16 = 8 + (24 - 8) / 2
    costs = {(t.microbatch_size, t.tensor): t.layers["layer.1"] for t in model.profiles[0].tables}
    assert costs[3, 1].activation_bytes == 300
    assert costs[3, 4].activation_bytes == 180  # degree 2 is the next smaller one with sizes
    assert (costs[3, 1].forward_s, costs[3, 1].backward_s, costs[3, 1].optimizer_s) == (3.0, 4.0, 0.25)
    notes = " ".join(model.profiles[0].provenance.notes)
    assert "divided evenly" not in notes
    assert "kept bytes at tensor degree 4 are those of the next smaller degree" in notes
    assert model.workload is None


def test_one_gpu_is_picked_in_either_name():
    for name in ("V100-16", "V100-16G"):
        model = read_path(FOLDER, options=ImportOptions(device_type=name))
        assert [profile.device_type for profile in model.profiles] == ["V100-16G"]
    with pytest.raises(InputError, match="there are no times on 'T4': use one of A100-40, V100-16"):
        read_path(FOLDER, options=ImportOptions(device_type="T4"))


def test_one_file_alone_is_refused():
    path = FOLDER / "profiles" / "OPT-350" / "A100-40" / "profile.json"
    with pytest.raises(InputError, match=r"a Sailor profile is a folder with MODEL/GPU/profile\.json"):
        read_path(path)
    with pytest.raises(InputError, match="a Sailor profile is a folder"):
        read_text(path.read_text())
    with pytest.raises(InputError, match="there are 0 Sailor models with costs"):
        read_path(FOLDER / "llm_info.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": []}, "net/gpu/profile.json: the file is '\\[\\]': it must be a JSON object"),
        ({"times": {"0": {}}}, "Sailor models? with costs|no times"),
        ({"times": {"x": {"1": {"0": [1, 1, 1]}}}}, "x/1: microbatch size is '0': it must be between 1"),
        ({"times": {"1": {"-1": {"0": [1, 1, 1]}}}}, "1/-1: tensor degree is '0'"),
        ({"times": {"1": {"1": {}}}}, "1/1 has 0 layers: give between 1 and"),
        ({"times": {"1": {"1": {"0": [1, 1, 1]}}}}, "net/gpu/profile.json has 1 layers at microbatch size 1, .* has 2"),
        ({"times": {"1": {"1": {"0": [1, 1, 1], "2": [1, 1, 1]}}}}, "1/1 has 2 layers and none called 1"),
        ({"times": {"1": {"1": {"0": [1, 1], "1": [1, 1, 1]}}}}, "1/1/0 is '\\[1, 1\\]': it must be three numbers"),
        ({"times": {"1": {"1": {"0": [1, -1, 1], "1": [1, 1, 1]}}}}, "1/1/0: backward is '-1': it must be between 0"),
        ({"times": {"1": {"1": {"0": [True, 1, 1], "1": [1, 1, 1]}}}}, "1/1/0: forward is 'True'"),
        ({"times": {"1": {"1": {"0": [1e99, 1, 1], "1": [1, 1, 1]}}}}, "1/1/0: forward is '1e[+]99'"),
        ({"times": {"1": {"1": {"0": [float("nan"), 1, 1]}}}}, "net/gpu/profile.json: .*NaN"),
        ({"sizes": {}}, "there are 0 Sailor models with costs"),
        ({"sizes": {"net": {"2": {"0": SIZES, "1": SIZES}}}}, "net has no tensor degree 1"),
        ({"sizes": {"net": {"1": {"0": SIZES}}}}, "llm_info.json has 1: they must be as many"),
        ({"sizes": {"net": {"1": {"0": SIZES, "1": SIZES}, "2": {"0": SIZES}}}}, "net has 1 layers at tensor degree 2"),
        ({"sizes": {"net": {"1": {"0": SIZES | {"act_mem_bytes": -1}}}}}, "net/1/0: act_mem_bytes is '-1'"),
        (
            {"sizes": {"net": {"1": {"0": SIZES | {"act_mem_bytes": 2**60}}}}},
            "net/1/0: act_mem_bytes is '11529215046",
        ),
        ({"sizes": {"net": {"1": {"0": SIZES | {"params_bytes": "24"}}}}}, "llm_info.json: .*params_bytes"),
        ({"sizes": {"net": {"1": {"0": SIZES | {"params_bytes": 7}, "1": SIZES}}}}, "net has 31 bytes for 12 param"),
        ({"sizes": {"net": {"1": 3}}}, "net/1 is '3': it must be a JSON object"),
        ({"training_config.json": {"model": "net", "global_batch_size": 0, "sequence_length": 1}}, "global_batch_size"),
        ({"training_config.json": {"model": "net"}}, "training_config.json: .*global_batch_size"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        read(**changes)


def test_truncated_files_are_named():
    cut = files()
    cut["llm_info.json"] = cut["llm_info.json"][:-3]
    with pytest.raises(InputError, match=r"llm_info.json: the document is not valid JSON"):
        IMPORTERS["sailor"].read_files(cut, ImportOptions())
