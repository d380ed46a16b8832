"""`pipeplan profile SOURCE --from FORMAT`: every format is written as a profile of ours that reads back equal."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from commandline import INSTANCES, Call, call

from planner.errors import InputError
from profiles.importers import ImportOptions, read_text
from profiles.importers.reading import read_path
from profiles.model import Grain, ModelRecord, ProfiledModel

__all__ = ["call"]

VIT = "google/vit-base-patch16-224"
SOURCES = {
    "pipedream": (INSTANCES / "pipedream" / "vgg16.graph.txt", ("--minibatch", "64"), ImportOptions(minibatch_size=64)),
    "device-placement": (INSTANCES / "device-placement" / "bert24_training.json", (), ImportOptions()),
    "piper": (INSTANCES / "piper" / "bert32a100.json", (), ImportOptions()),
    "pipeedge": (INSTANCES / "pipeedge", ("--model", VIT), ImportOptions(model=VIT)),
    "sailor": (INSTANCES / "sailor", ("--device", "V100-16G"), ImportOptions(device_type="V100-16G")),
    "kineto": (
        INSTANCES / "kineto" / "three_layers.json",
        ("--minibatch", "16", "--grain", "module"),
        ImportOptions(minibatch_size=16, grain=Grain.MODULE),
    ),
}


def expected(name: str) -> ProfiledModel | ModelRecord:
    path, _, options = SOURCES[name]
    return read_path(path, format=name, options=options) or read_text(path.read_text(), format=name, options=options)


@pytest.mark.parametrize("word", ["--from", "--format"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_file_of_others_becomes_a_profile_of_ours(call: Call, tmp_path: Path, name: str, word: str) -> None:
    path, options, _ = SOURCES[name]
    written = tmp_path / "profile.json"
    said = call("profile", path, word, name, *options, "-o", written)
    assert said.status == 0, said.err
    assert read_text(written.read_text()) == expected(name)
    assert "note: " in said.err


@pytest.mark.parametrize("name", SOURCES)
def test_the_format_is_guessed(call: Call, tmp_path: Path, name: str) -> None:
    path, options, _ = SOURCES[name]
    written = tmp_path / "profile.json"
    assert call("profile", path, *options, "-o", written).status == 0
    assert read_text(written.read_text()) == expected(name)


def test_records_are_priced(call: Call, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    kind = onnx.TensorProto.FLOAT
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    weight = onnx.TensorProto(name="w", data_type=kind, dims=(4, 3), raw_data=bytes(48))
    ends = [
        [onnx.helper.make_tensor_value_info(name, kind, shape)] for name, shape in (("x", ["b", "t", 4]), ("y", None))
    ]
    path, written = tmp_path / "net.onnx", tmp_path / "profile.json"
    path.write_bytes(onnx.helper.make_model(onnx.helper.make_graph(nodes, "net", *ends, [weight])).SerializeToString())
    refused = call("profile", path, "--from", "onnx", "--device", "L4")
    assert refused.status == 2
    assert "--sequence-length" in refused.err
    said = call("profile", path, "--from", "onnx", "--device", "L4", "--sequence-length", "5", "-o", written)
    assert said.status == 0, said.err
    (layer,) = read_text(written.read_text()).graph.layers
    assert (layer.id, layer.parameter_bytes) == ("product", 48)


def test_a_packed_file_goes_into_a_plan(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "vgg16.graph.txt.gz"
    path.write_bytes(gzip.compress((INSTANCES / "pipedream" / "vgg16.graph.txt").read_bytes()))
    said = call("plan", path, "--cluster", "2xV100-16G", "--global-batch", "4", "--time-limit-s", "5", "--json")
    assert said.status == 0, said.err


def test_a_folder_with_its_cluster_goes_into_a_plan(call: Call) -> None:
    said = call(
        "plan", INSTANCES / "pipeedge", "--model", VIT, "--objective", "throughput", "--time-limit-s", "5", "--json"
    )
    assert said.status == 0, said.err
    assert "mb-0" in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((INSTANCES / "pipeedge",), "name one with --model"),
        ((INSTANCES / "pipeedge", "--model", "x"), "there is no PipeEdge model 'x'"),
        ((INSTANCES / "pipeedge", "--from", "piper"), "is a folder, and the format piper is one file"),
        ((INSTANCES / "sailor", "--device", "T4"), "there are no times on 'T4'"),
        ((INSTANCES / "sailor" / "llm_info.json",), "Sailor"),
        ((INSTANCES / "pipedream" / "vgg16.graph.txt", "--from", "onnx"), "is no whole ONNX model"),
        ((INSTANCES / "pipedream" / "vgg16.graph.txt", "--from", "gguf"), "unknown format 'gguf'"),
    ],
)
def test_what_is_wrong_is_said(call: Call, words: tuple[object, ...], message: str) -> None:
    said = call("profile", *words)
    assert said.status == InputError.exit_status
    assert message in " ".join(said.err.split())
