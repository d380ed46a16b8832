"""One door for every source: names, files, standard input, torch models; and problems made of them."""

import io
import json
from pathlib import Path

import pytest

from planner import codec
from planner.errors import InputError
from planner.problem import Problem
from planner.workload import Inference, Training
from profiles import recipes, sources
from profiles.clusters import parse_cluster
from profiles.importers.base import IMPORTERS, UNNAMED_DEVICE
from profiles.model import ModelRecord, ProfiledModel
from profiles.sources import SourceOptions, build_problem, catalogue_problem, load_source, on_cluster

INSTANCES = Path(__file__).parent.parent / "instances"
VGG = str(INSTANCES / "pipedream" / "vgg16.graph.txt")
BERT = str(INSTANCES / "device-placement" / "bert24_inference.json")
TINY = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 2, "n_head": 2,
    "vocab_size": 64, "n_positions": 16,
}  # fmt: skip
TRAINING = Training(global_batch_size=8)


class Stdin:
    """Standard input that holds `content`."""

    def __init__(self, content):
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize("name", sources.catalogue_model_names())
def test_every_recorded_model_loads_and_is_priced_for_a_cluster(name):
    record = load_source(name)
    assert isinstance(record, ModelRecord)
    problem = catalogue_problem(name, parse_cluster("2x2xA100-80G-SXM"), TRAINING)
    assert isinstance(problem, Problem)
    assert [table.microbatch_size for table in problem.profiles[0].tables] == [1, 2, 4, 8]
    assert set(problem.profiles[0].tables[0].layers) == {layer.id for layer in record.graph.layers}


def test_one_profile_per_device_type_that_is_used(tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text('[[nodes]]\ndevices = [{ type = "B200", count = 2 }, { type = "L4" }]')
    profiles = sources.priced_problem_parts(
        load_source("resnet-50"), parse_cluster(str(path)), microbatch_sizes=[3], tensor=1
    )
    assert [profile.device_type for profile in profiles] == ["B200", "L4"]
    slow, fast = (profiles[k].tables[0].layers for k in (1, 0))
    assert sum(c.forward_s for c in slow.values()) > sum(c.forward_s for c in fast.values()) > 0


def test_the_given_microbatch_size_and_tensor_degree_are_priced():
    workload = Training(global_batch_size=512, microbatch_size=4, tensor=8)
    problem = catalogue_problem("llama-3-70b", parse_cluster("8x8xH100-80G-SXM"), workload)
    assert [(t.microbatch_size, t.tensor) for t in problem.profiles[0].tables] == [(1, 8), (2, 8), (4, 8)]


@pytest.mark.parametrize(("source", "kind"), [(VGG, ProfiledModel), (BERT, ProfiledModel)])
def test_files_are_recognised(source, kind):
    found = load_source(source)
    assert isinstance(found, kind)
    named = "pipedream" if source == VGG else "device-placement"
    assert load_source(source, format=named) == found


def test_standard_input_is_a_file(monkeypatch):
    monkeypatch.setattr(sources.sys, "stdin", Stdin(Path(VGG).read_bytes()))
    assert load_source("-") == load_source(VGG)


def test_a_record_as_a_file_is_the_record(tmp_path):
    record = load_source("resnet-50")
    path = tmp_path / "mine.json"
    path.write_text(codec.dumps(record))
    assert load_source(str(path)) == record
    assert load_source("resnet-50", format="catalogue") == record


def test_a_file_that_names_no_device_stands_for_the_only_type_of_the_cluster():
    assert load_source(VGG).profiles[0].device_type == UNNAMED_DEVICE
    profile = load_source(VGG, cluster=parse_cluster("4xV100-16G")).profiles[0]
    assert profile.device_type == "V100-16G"
    assert "taken for V100-16G" in profile.provenance.notes[-1]


def test_a_named_device_type_must_be_in_the_cluster():
    options = SourceOptions(device_type="V100-16G", minibatch_size=128)
    profile = load_source(VGG, cluster=parse_cluster("4xV100-16G"), options=options).profiles[0]
    assert (profile.device_type, profile.tables[0].microbatch_size) == ("V100-16G", 128)
    with pytest.raises(InputError, match=r"device type 'V100-16G', the cluster has 'T4'.*--device-type"):
        load_source(VGG, cluster=parse_cluster("4xT4"), options=options)


def test_an_unnamed_device_in_a_mixed_cluster_is_asked_for(tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text('[[nodes]]\ndevices = [{ type = "B200" }, { type = "L4" }]')
    with pytest.raises(InputError, match=r"device type 'unnamed', the cluster has 'B200', 'L4'"):
        load_source(VGG, cluster=parse_cluster(str(path)))


def test_profiles_of_other_devices_are_left_out():
    model = load_source(BERT)
    only = parse_cluster("1xT4")
    renamed = [codec.encode(model)["profiles"][0] | {"device_type": "T4"}, codec.encode(model)["profiles"][1]]
    both = codec.decode(ProfiledModel, codec.encode(model) | {"profiles": renamed})
    kept = on_cluster(both, only)
    assert [profile.device_type for profile in kept.profiles] == ["T4"]
    assert kept.cluster == only


def test_a_file_with_cluster_and_workload_is_a_problem():
    problem = build_problem(load_source(BERT), None, None)
    assert len(problem.devices) == 7
    assert isinstance(problem.workload, Inference)


@pytest.mark.parametrize(("cluster", "workload", "missing"), [(None, TRAINING, "cluster"), ("4xT4", None, "workload")])
def test_what_is_missing_for_a_problem_is_named(cluster, workload, missing):
    with pytest.raises(InputError, match=f"there is no {missing}") as caught:
        build_problem(load_source(VGG), cluster and parse_cluster(cluster), workload)
    assert caught.value.pointer == f"/{missing}"


@pytest.mark.parametrize(
    ("source", "format", "message"),
    [
        ("gpt2", None, "did you mean gpt2-small"),
        ("nothing-like-it.xyz", None, "Models: bert-large"),
        ("resnet50", "catalogue", "did you mean resnet-50"),
        (VGG, "gguf", f"unknown format 'gguf': use one of {', '.join(IMPORTERS.names())}, cat"),
        (VGG, "device-placement", "not valid JSON"),
        ("a\0b", None, "is no name of a model or file"),
        ("os:system", None, "run by the command line only"),
        ("os:system", "factory", "run by the command line only"),
        (str(INSTANCES), None, "No such file"),
    ],
)
def test_bad_sources_say_what_to_do(source, format, message):
    with pytest.raises(InputError, match=message):
        load_source(source, format=format)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 0\)"):
        load_source(str(path))


def test_large_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_SOURCE_BYTES", 10)
    with pytest.raises(InputError, match="has more than 10 bytes"):
        load_source(VGG)


def test_without_torch_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    monkeypatch.setattr(recipes, "find_spec", lambda name: None)
    for source in (str(tmp_path), str(tmp_path / "config.json")):
        with pytest.raises(InputError, match=r"must be built with torch.*pipeplan\[torch\]"):
            load_source(source)


def test_a_configuration_is_recorded_as_shapes_only(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    record = load_source(str(tmp_path), options=SourceOptions(sequence_length=8))
    assert isinstance(record, ModelRecord)
    assert (record.dtype, record.sequence_length) == ("float32", 8)
    problem = build_problem(record, parse_cluster("2xcpu-core"), TRAINING)
    assert all(table.sequence_length == 8 for table in problem.profiles[0].tables)


def test_a_recipe_holds_the_configuration(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    recipe = recipes.model_source(str(tmp_path), sequence_length=8)
    assert recipe == recipes.model_source("elsewhere/config.json", text=path.read_text(), sequence_length=8)
    assert (recipe.kind, recipe.reference, recipe.config) == ("transformers", "config.json", TINY)
    factory = recipes.model_source("my_models:make_gpt", seed=3)
    assert (factory.kind, factory.reference, factory.seed) == ("factory", "my_models:make_gpt", 3)


@pytest.mark.parametrize("text", ["{}", "[]", '{"model_type": 3}'])
def test_other_json_is_no_recipe(text):
    with pytest.raises(InputError, match="is no transformers configuration"):
        recipes.model_source("x.json", text=text)


def test_a_missing_configuration_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        recipes.model_source(str(tmp_path / "config.json"))
