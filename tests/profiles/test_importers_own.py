"""Our own documents as a format, and the choice of a format."""

import json
from pathlib import Path

import pytest

from planner import codec
from planner.errors import InputError
from planner.graph import Layer, LayerGraph
from planner.problem import Problem
from profiles.importers import IMPORTERS, read_text
from profiles.model import LayerWork, ModelRecord, ProfiledModel

INSTANCES = Path(__file__).parent.parent / "instances"
GRAPH = LayerGraph(layers=(Layer(id="a"),))
RECORD = ModelRecord(
    name="tiny",
    dtype="float32",
    sequence_length=None,
    graph=GRAPH,
    work={"a": LayerWork(forward_flops=1.0, backward_flops=2.0)},
)


@pytest.fixture(scope="module")
def bert():
    return read_text((INSTANCES / "device-placement" / "bert24_inference.json").read_text())


def test_a_profiled_model_is_read_back(bert):
    assert read_text(codec.dumps(bert)) == bert


def test_a_record_is_read_back():
    assert read_text(codec.dumps(RECORD)) == RECORD


def test_a_problem_gives_its_parts(bert):
    problem = Problem(graph=bert.graph, profiles=bert.profiles, cluster=bert.cluster, workload=bert.workload)
    assert read_text(codec.dumps(problem)) == bert


@pytest.mark.parametrize("noun", [RECORD, ProfiledModel(graph=GRAPH, profiles=())], ids=["record", "profiled"])
def test_headers_may_be_left_out(noun):
    values = codec.encode(noun)
    del values["document"], values["schema_version"]
    assert read_text(json.dumps(values)) == noun


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is a JSON object"),
        ('{"document": "plan"}', "this is a 'plan' document: give one of profiled_model, model_record, problem"),
        ('{"document": 3}', "this is a '3' document"),
        ('{"graph": {"layers": []}, "profiles": [], "extra": 1}', "/extra"),
        ('{"graph": ', "not valid JSON"),
        ('{"document": "model_record", "schema_version": 99}', "schema_version is 99"),
    ],
)
def test_bad_documents_are_named(text, message):
    with pytest.raises(InputError, match=message):
        read_text(text, format="profile")


def test_every_instance_looks_like_exactly_one_format():
    paths = [path for name in IMPORTERS.names() for path in INSTANCES.glob(f"{name}/*.*")]
    heads = {path: path.read_bytes()[:65_536] for path in paths}
    assert len(heads) >= 9
    for path, head in heads.items():
        assert [importer.name for importer in IMPORTERS if importer.sniff(head)] == [path.parent.name], path


@pytest.mark.parametrize("text", ["", "hello", "{}", "[1]", '{"model_type": "gpt2"}', "\x00\x01"])
def test_unknown_text_names_the_formats(text):
    with pytest.raises(InputError, match=f"one of {', '.join(IMPORTERS.names())}"):
        read_text(text)


def test_an_unknown_format_is_named():
    with pytest.raises(InputError, match="unknown format 'gguf'"):
        read_text("", format="gguf")


def test_a_byte_order_mark_does_no_harm(bert):
    assert read_text("\ufeff" + codec.dumps(bert)) == bert
