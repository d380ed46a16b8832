"""PipeEdge's YAML: every figure comes through in our units, and bad files are named with their lines."""

import shutil
from pathlib import Path

import pytest

from planner import codec
from planner.errors import InputError
from planner.workload import Inference
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.importers.reading import read_path
from profiles.model import ProfiledModel
from profiles.sources import SourceOptions, build_problem, load_source

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[1] / "instances" / "pipeedge"
BASE, LARGE = "google/vit-base-patch16-224", "google/vit-large-patch16-224"
NAMES = ("models.yml", "device_types.yml", "devices.yml")
SMALL = """
net:
  layers: 2
  mem_MB: [1.5, 2]
  parameters_in: 3
  parameters_out: [5, 7]
---
box:
  bw_Mbps: 8
  mem_MB: 64
  model_profiles:
    net:
    - batch_size: 4
      dtype: torch.float16
      time_s: [0.25, 0.5]
    - batch_size: 8
      dtype: torch.float32
      time_s: [9, 9]
    - batch_size: 2
      dtype: torch.float16
      time_s: [0.125, 0.25]
---
box: [left, right]
"""


def assert_faithful(folder, name):
    """Everything recomputed from what PyYAML's own constructor reads."""
    raw = {file: yaml.safe_load((folder / file).read_text()) for file in NAMES}
    model = read_path(folder, options=ImportOptions(model=name))
    expected = raw["models.yml"][name]
    count = expected["layers"]
    assert len(model.graph.layers) == count
    for layer, megabytes in zip(model.graph.layers, expected["mem_MB"], strict=True):
        assert 0 <= layer.parameter_bytes - megabytes * 1024 * 1024 < 1
    sizes = [edge.bytes_per_sample for edge in model.graph.edges]
    assert sizes == [4 * elements for elements in expected["parameters_out"][:-1]]
    hosts = {kind: names for kind, names in raw["devices.yml"].items() if names}
    assert {profile.device_type for profile in model.profiles} == set(hosts)
    for profile in model.profiles:
        (measured,) = raw["device_types.yml"][profile.device_type]["model_profiles"][name]
        (table,) = profile.tables
        assert (table.microbatch_size, f"torch.{profile.dtype}") == (measured["batch_size"], measured["dtype"])
        seconds = [table.layers[layer.id].forward_s for layer in model.graph.layers]
        assert seconds == measured["time_s"]
        assert all(cost.backward_s == 0 for cost in table.layers.values())
    assert {device.id: device.type for device in model.cluster.devices} == {h: k for k, ns in hosts.items() for h in ns}
    for kind in model.cluster.device_types:
        assert kind.memory_bytes == raw["device_types.yml"][kind.name]["mem_MB"] * 2**20
    problem = build_problem(model, None, None)
    first, last = (hosts[kind][0] for kind in hosts)
    slowest = min(raw["device_types.yml"][kind]["bw_Mbps"] for kind in hosts)
    assert problem.network.route(first, last).seconds(slowest * 1024 * 1024 // 8) == pytest.approx(1.0)
    assert codec.loads(ProfiledModel, codec.dumps(model)) == model
    assert read_text(codec.dumps(model)) == model


@pytest.mark.parametrize("name", [BASE, LARGE])
def test_every_figure_of_the_files_comes_through(name):
    assert_faithful(FOLDER, name)


@pytest.mark.parametrize("name", [BASE, LARGE])
def test_the_files_beside_the_repository_come_through(shared_bench, name):
    assert_faithful(shared_bench / "pipeedge", name)


def test_traps_are_said():
    model = read_path(FOLDER, options=ImportOptions(model=BASE))
    notes = " ".join(model.profiles[0].provenance.notes)
    assert "2^20" in notes
    assert "64 microbatches" in notes
    assert "left out, without hosts or times of the model: DummyDeviceType" in notes
    assert model.workload == Inference(global_batch_size=64 * 8, microbatch_size=8)


def test_memory_was_recorded_in_pages_and_millions_of_bytes():
    """Why the notes say 10^6: the recorded figures are whole pages of 4096 bytes only then."""
    figures = yaml.safe_load((FOLDER / "models.yml").read_text())[BASE]["mem_MB"]
    pages = [figure * 1e6 / 4096 for figure in figures]
    assert all(abs(page - round(page)) < 1e-6 for page in pages)


def test_a_stream_of_the_documents_is_read_too():
    model = read_text(SMALL)
    assert [layer.parameter_bytes for layer in model.graph.layers] == [3 * 2**19, 2 * 2**20]
    assert model.graph.edges[0].bytes_per_sample == 5 * 2
    (profile,) = model.profiles
    assert profile.dtype == "float16"
    assert [(t.microbatch_size, t.layers["layer.2"].forward_s) for t in profile.tables] == [(2, 0.25), (4, 0.5)]
    assert {link.bandwidth_bytes_per_s for link in model.cluster.links} == {2**20}
    assert model.workload.weight_bytes_per_parameter == 2


def test_the_model_is_asked_for_where_there_are_several():
    with pytest.raises(InputError, match=f"there are 2 PipeEdge models with costs: name one with --model, of {BASE}"):
        read_path(FOLDER)
    with pytest.raises(InputError, match="there is no PipeEdge model 'DummyModel' with costs: use one of google"):
        read_path(FOLDER, options=ImportOptions(model="DummyModel"))
    assert load_source(str(FOLDER), options=SourceOptions(model=LARGE)).graph.name == LARGE


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(tmp_path, name):
    shutil.copytree(FOLDER, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    with pytest.raises(InputError, match=rf"there is no {name} of PipeEdge: give the folder"):
        read_path(tmp_path / "copy")
    with pytest.raises(InputError, match=r"there is no .* of PipeEdge"):
        read_path(FOLDER / name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("layers: 2", "layers: 3", "line 4: model 'net': mem_MB has 2 entries: it must have 3, one per layer"),
        ("layers: 2", "layers: two", "line 3: model 'net': layers is 'two': it must be a whole number between 0"),
        ("1.5, 2", "1.5, -2", "line 4: model 'net': mem_MB, entry 1 is -2: it must be a number between 0"),
        ("1.5, 2", "1.5, .nan", "mem_MB, entry 1 is nan"),
        ("1.5, 2", "1.5, .inf", "mem_MB, entry 1 is inf"),
        ("1.5, 2", "1.5, 1e300", "mem_MB, entry 1 is 1e[+]300"),
        ("[5, 7]", "[5.5, 7]", "parameters_out, entry 0 is 5.5: it must be a whole number"),
        ("[5, 7]", "5", "line 6: model 'net': parameters_out is 5: it must be a list"),
        ("  parameters_in: 3\n", "", "model 'net' has no parameters_in: add it"),
        ("bw_Mbps: 8", "bw_Mbps: 0", "device type 'box' has hosts and a bw_Mbps of 0"),
        ("bw_Mbps: 8", "bw_Mbps: fast", "device type 'box': bw_Mbps is 'fast'"),
        ("mem_MB: 64", "mem_MB: -1", "device type 'box': mem_MB is -1"),
        ("batch_size: 4", "batch_size: 0", "batch_size is 0: it must be a whole number between 1"),
        ("torch.float16", "torch.float17", "dtype 'float17' is unknown: use one of float64"),
        ("[0.25, 0.5]", "[0.25]", "has 1 times of model 'net', which has 2 layers"),
        ("[0.25, 0.5]", "[0.25, {a: 1}]", "time_s, entry 1 is dict: it must be a number"),
        ("box: [left, right]", "bix: [left, right]", "devices.yml: device type 'bix' is not in device_types.yml"),
        ("box: [left, right]", "box: [left, [right]]", "a host of 'box' is no name"),
        ("layers: 2", "layers: 2\n  layers: 2", "line 4: key 'layers' is there twice"),
        ("layers: 2", "layers: [2", "this is no YAML"),
        ("[1.5, 2]", "&x [1.5, 2]\n  more: *x", r"an alias \(\*name\) stands for this"),
        ("net:\n  layers", "net:\n  x: &x [*x]\n  layers", "this is no YAML|an alias"),
        ("net:\n  layers", "? [a]\n: 1\nnet:\n  layers", "a key is no plain word"),
        ("net:\n  layers", "net:\n  x: " + "[" * 40 + "]" * 40 + "\n  layers", "nested deeper than 32 levels"),
        ("net:\n  layers", "net:\n  x: " + "[" * 5000 + "]" * 5000 + "\n  layers", "nested deeper than 32 levels"),
        ("net:\n  layers", "net:\n  strata", "neither models .* nor device types"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old, new, message):
    assert old in SMALL
    with pytest.raises(InputError, match=message):
        read_text(SMALL.replace(old, new, 1), format="pipeedge")


def test_bytes_that_are_no_text_are_named():
    with pytest.raises(InputError, match=r"models\.yml is not UTF-8 text"):
        IMPORTERS["pipeedge"].read_files({"models.yml": b"\xff\xfe"}, ImportOptions())
