"""Damaged files of every format: a model that holds together, or an InputError with words; nothing else."""

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import codec
from planner.errors import InputError
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.importers.base import checked

INSTANCES = Path(__file__).parents[1] / "instances"
PIPEDREAM = """node1 -- Input -- forward_compute_time=0, backward_compute_time=0, activation_size=4.0, parameter_size=0
node2 -- Linear(2, 3) -- forward_compute_time=1.5, backward_compute_time=2e1, activation_size=[8; 4], parameter_size=24
\tnode1 -- node2
"""
DEVICE_PLACEMENT = {
    "maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1,
    "nodes": [
        {"id": i, "name": f"n{i}", "cpuLatency": 2.0, "fpgaLatency": 1.0, "supportedOnFpga": 1, "isBackwardNode": 0,
         "colorClass": i, "size": 8.0} for i in (1, 2)
    ],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 0.5, "size": 100.0}],
}  # fmt: skip
VARIANT = {"id": "v", "timePerSample": 3.0, "parameterSize": 8.0, "memoryUsageA": 4.0, "memoryUsageB": 16.0}
PIPER = {
    "maxDevices": 2, "maxMemoryPerDevice": 1e3, "bandwidth": 1e3, "mbsInBatch": 4,
    "nodes": [{"id": i, "name": f"n{i}", "TMPCs": {"1": [VARIANT], "2": [VARIANT]}} for i in (1, 2)],
    "edges": [{"sourceId": 1, "destId": 2, "communicationCost": 4.0}],
}  # fmt: skip
CALCULON = {"hidden": 16, "feedforward": 64, "seq_size": 8, "attn_heads": 2, "attn_size": 8, "num_blocks": 2}
KINETO = {
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 9, "args": {}},
        {"ph": "X", "cat": "cpu_op", "name": "mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2,
         "args": {"Sequence number": 1}},
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2, "args": {"Bytes": 8, "Addr": 1, "Device Type": 0}},
        {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: Mm", "pid": 1, "tid": 1, "ts": 10,
         "dur": 2, "args": {"Sequence number": 1, "Input Dims": [[2, 3]], "Input type": ["float"]}},
    ]
}  # fmt: skip
SIZES = {"params_floats": 6, "params_bytes": 24, "act_output_bytes": 40, "act_mem_bytes": 100}
SAILOR = {
    "net/gpu/profile.json": {"2": {"1": {"0": [1.0, 2.0, 0.5], "1": [3.0, 4.0, 0.25]}}},
    "llm_info.json": {"net": {"1": {"0": SIZES, "1": SIZES}}},
    "training_config.json": {"model": "net", "global_batch_size": 4, "sequence_length": 8},
}
SMALL_PIPEEDGE = """net:
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
---
box: [left, right]
"""
JSON_FORMATS = {"device-placement": DEVICE_PLACEMENT, "piper": PIPER, "calculon": CALCULON, "kineto": KINETO}
TEXT_FORMATS = {"pipedream": PIPEDREAM, "pipeedge": SMALL_PIPEEDGE} | {
    name: json.dumps(values) for name, values in JSON_FORMATS.items()
}
ODD = (
    None,
    True,
    -1,
    -0.5,
    0,
    1e300,
    2**70,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
    "9" * 20,
    [],
    {},
    [[]],
    "\u202e",
)
MORE = settings(max_examples=60)


def outcome(read):
    """The model, or the words of the refusal."""
    try:
        return checked(read())
    except InputError as fault:
        return str(fault)


def assert_read_or_refused(read):
    """What comes back holds together and can be written and read; a refusal has words."""
    found = outcome(read)
    if isinstance(found, str):
        assert len(found) > 10
    else:
        assert read_text(codec.dumps(found)) == found


def places(values, path=()):
    """Paths to all values in JSON."""
    yield path
    if isinstance(values, dict | list):
        for key in values if isinstance(values, dict) else range(len(values)):
            yield from places(values[key], (*path, key))


@st.composite
def damaged(draw, values):
    """The values with one to three of them replaced, removed, or repeated elsewhere."""
    made = copy.deepcopy(values)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([p for p in places(made) if p] or [()]))
        if not path:
            break
        parent = made
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(("replace", "remove", "repeat")))
        if how == "replace":
            parent[path[-1]] = draw(st.sampled_from(ODD))
        elif how == "remove":
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
    return made


@st.composite
def damaged_text(draw, text):
    """The text cut, or with some of its words or characters replaced."""
    if draw(st.booleans()):
        text = text[: draw(st.integers(0, len(text)))]
    for _ in range(draw(st.integers(0, 3))):
        words = list(re.finditer(r"[\w.+-]+|\S|\s+", text))
        if words:
            word = draw(st.sampled_from(words))
            new = draw(
                st.sampled_from(("", "-1", "nan", "inf", "1e999", "9" * 30, "x", "\t", "\n", "[", "]", "{", ":", "\0"))
            )
            text = text[: word.start()] + new + text[word.end() :]
    return text


@pytest.mark.parametrize("name", JSON_FORMATS)
@MORE
@given(data=st.data())
def test_json_with_odd_values(name, data):
    values = data.draw(damaged(JSON_FORMATS[name]))
    assert_read_or_refused(lambda: read_text(json.dumps(values), format=name))


@pytest.mark.parametrize("name", TEXT_FORMATS)
@MORE
@given(data=st.data())
def test_text_with_odd_words(name, data):
    if name == "pipeedge":
        pytest.importorskip("yaml")
    text = data.draw(damaged_text(TEXT_FORMATS[name]))
    assert_read_or_refused(lambda: read_text(text, format=name))


@MORE
@given(data=st.data())
def test_sailor_with_odd_values(data):
    values = data.draw(damaged(SAILOR))
    files = {str(path): json.dumps(value).encode() for path, value in values.items()}
    assert_read_or_refused(lambda: IMPORTERS["sailor"].read_files(files, ImportOptions()))


@MORE
@given(text=st.text(max_size=200), data=st.data())
def test_any_text_is_read_or_refused(text, data):
    name = data.draw(st.sampled_from(IMPORTERS.names()))
    if name == "pipeedge":
        pytest.importorskip("yaml")
    assert_read_or_refused(lambda: read_text(text, format=name))


def test_the_undamaged_files_are_read():
    """Otherwise the tests above would show nothing."""
    pytest.importorskip("yaml")
    for name, text in TEXT_FORMATS.items():
        assert read_text(text, format=name).graph.layers
    files = {path: json.dumps(value).encode() for path, value in SAILOR.items()}
    assert IMPORTERS["sailor"].read_files(files, ImportOptions()).graph.layers


def _onnx_model():
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="h"), helper.make_node("Relu", ["h"], ["y"], name="y")]
    weight = onnx.TensorProto(name="w", data_type=kind, dims=(4, 3), raw_data=bytes(48))
    ends = [helper.make_tensor_value_info("x", kind, ["b", 4])], [helper.make_tensor_value_info("y", kind, None)]
    return helper.make_model(helper.make_graph(nodes, "net", *ends, [weight]))


@MORE
@given(data=st.data())
def test_onnx_with_odd_bytes(data):
    content = bytearray(_onnx_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(1, len(content)))])
    assert_read_or_refused(lambda: IMPORTERS["onnx"].read_files({"net.onnx": content}, ImportOptions()))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pipedream", PIPEDREAM + "\tnode2 -- node1\n", "the layer graph has a cycle: node1 -> node2 -> node1"),
        ("pipedream", PIPEDREAM + PIPEDREAM.splitlines()[0], "layer id 'node1' occurs twice"),
        ("pipedream", PIPEDREAM + "\tnode1 -- node1\n", "edge 1 joins layer 'node1' to itself"),
        ("device-placement", json.dumps(DEVICE_PLACEMENT | {"edges": [
            {"sourceId": a, "destId": b, "cost": 0.5, "size": 1.0} for a, b in ((1, 2), (2, 1))
        ]}), "the layer graph has a cycle: n1 -> n2 -> n1"),
        ("piper", json.dumps(PIPER | {"edges": [
            {"sourceId": a, "destId": b, "communicationCost": 4.0} for a, b in ((1, 2), (2, 1))
        ]}), "the layer graph has a cycle: n1 -> n2 -> n1"),
    ],
)  # fmt: skip
def test_graphs_that_are_none_are_refused_at_once(name, text, message):
    with pytest.raises(InputError, match=message):
        read_text(text, format=name)
