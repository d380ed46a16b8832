"""PipeDream's graph.txt: every figure comes through, and bad lines are named."""

import re
from pathlib import Path

import pytest

from planner import codec
from planner.checks import check_graph
from planner.errors import InputError
from planner.graph import GraphIndex
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.importers.base import UNNAMED_DEVICE
from profiles.model import ProfiledModel

FILES = sorted((Path(__file__).parent.parent / "instances" / "pipedream").glob("*.graph.txt"))
NODE = "node{} -- op -- forward_compute_time=1.5, backward_compute_time=3, activation_size={}, parameter_size=8.0"


def read(path):
    return read_text(path.read_text(), format="pipedream")


def totals(text):
    """Sums over all node lines, read by search alone: forward ms, backward ms, activation and parameter bytes."""
    keys = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
    rows = [re.findall(rf"{key}=(\[.*?\]|[0-9.]+)", text) for key in keys]
    return [sum(float(x) for row in found for x in row.strip("[]").split(";")) for found in rows]


def assert_faithful(path):
    text = path.read_text()
    assert IMPORTERS["pipedream"].sniff(text[:65_536].encode())
    model = read(path)
    check_graph(model.graph)
    costs = model.profiles[0].tables[0].layers
    forward, backward, activations, parameters = totals(text)
    assert sum(cost.forward_s for cost in costs.values()) == pytest.approx(forward / 1e3)
    assert sum(cost.backward_s for cost in costs.values()) == pytest.approx(backward / 1e3)
    assert sum(cost.activation_bytes for cost in costs.values()) == activations
    assert sum(layer.parameter_bytes for layer in model.graph.layers) == parameters
    assert len(model.graph.edges) == len(re.findall(r"^\t", text, re.MULTILINE))
    assert len(GraphIndex(model.graph)) == len(re.findall(r"^\S", text, re.MULTILINE))
    assert codec.loads(ProfiledModel, codec.dumps(model)) == model


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_figure_of_the_file_comes_through(path):
    assert_faithful(path)


def test_all_files_beside_the_repository_come_through(shared_bench):
    paths = sorted((shared_bench / "pipedream").glob("*.graph.txt"))
    assert len(paths) >= 6
    for path in paths:
        assert_faithful(path)


def test_units_of_one_line_of_vgg16():
    model = read(next(path for path in FILES if path.name == "vgg16.graph.txt"))
    cost = model.profiles[0].tables[0].layers["node12"]
    assert (cost.forward_s, cost.backward_s, cost.activation_bytes) == (0.010814, 0.018335, 411_041_792)
    layer = next(layer for layer in model.graph.layers if layer.id == "node12")
    assert layer.op.startswith("Conv2d(128, 256,")
    assert layer.parameter_bytes == (128 * 256 * 9 + 256) * 4
    edge = next(edge for edge in model.graph.edges if edge.source == "node12")
    assert (edge.target, edge.bytes_per_sample) == ("node13", 411_041_792)
    assert model.profiles[0].device_type == UNNAMED_DEVICE


def test_lists_of_activations_are_added_up():
    model = read_text(NODE.format(1, "[6291456.0; 131072.0; 131072.0]"))
    assert model.profiles[0].tables[0].layers["node1"].activation_bytes == 6_553_600


def test_the_minibatch_divides_tensors_and_keys_the_table():
    path = next(path for path in FILES if path.name == "vgg16.graph.txt")
    options = ImportOptions(device_type="V100-16G", minibatch_size=128)
    model = read_text(path.read_text(), options=options)
    edge = next(edge for edge in model.graph.edges if edge.source == "node12")
    assert edge.bytes_per_sample == 256 * 56 * 56 * 4  # one float32 image of 256 channels
    assert model.profiles[0].tables[0].microbatch_size == 128
    assert model.profiles[0].device_type == "V100-16G"


def test_sizes_that_do_not_divide_are_rounded_up():
    text = "\n".join((NODE.format(1, "10.5"), NODE.format(2, "1"), "\tnode1 -- node2"))
    model = read_text(text, options=ImportOptions(minibatch_size=4))
    assert model.graph.edges[0].bytes_per_sample == 3


def test_files_of_dapple_are_read_too():
    """Their edges are indented with spaces, or a space and a tab; figures have blanks behind them."""
    figures = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"
    lines = (
        "node1 -- Input -- " + figures.format("0.00", "0", "[60; 4]", "0"),
        "node2 -- cell_0 -- " + figures.format("8.07", "13.4", "12", "5 "),
        "node3 -- loss -- " + figures.format("0.04", "0.00", "0", "0"),
        "  node1 -- node2",
        " \tnode2 -- node3",
        "\tnode1 -- node3",
    )
    model = read_text("\n".join(lines), options=ImportOptions(minibatch_size=2))
    edges = [(edge.source, edge.target, edge.bytes_per_sample) for edge in model.graph.edges]
    assert edges == [("node1", "node2", 32), ("node2", "node3", 6), ("node1", "node3", 32)]
    assert model.profiles[0].tables[0].layers["node2"].forward_s == pytest.approx(8.07e-3)
    assert model.graph.layers[1].parameter_bytes == 5


def test_stage_ids_of_an_optimised_file_are_dropped():
    model = read_text(NODE.format(1, "4.0") + " -- stage_id=3")
    assert model.graph.layers[0].op == "op"
    assert model.profiles[0].tables[0].layers["node1"].activation_bytes == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no node line"),
        ("node1 -- op", "line 1: a node line is"),
        ("node1", "line 1: a node line is"),
        (NODE.format(1, "4") + "\n\tnode1 -- node9", "line 2: the edge names 'node9'"),
        (NODE.format(1, "4") + "\n\tnode1", "line 2: an edge line is"),
        (NODE.format(1, "-4"), "line 1: node 'node1': activation_size is '-4': it must be between 0"),
        (NODE.format(1, "nan"), "activation_size is 'nan'"),
        (NODE.format(1, "1e99"), "activation_size is '1e99'"),
        (NODE.format(1, "1_0"), "activation_size is '1_0'"),
        (NODE.format(1, "[1; x]"), "activation_size is 'x'"),
        (NODE.format(1, ""), "activation_size is ''"),
        ("node1 -- op -- forward_compute_time=1", "node 'node1' has no backward_compute_time"),
        ("\n\n" + NODE.format(1, "?"), "line 3:"),
    ],
)
def test_bad_text_names_the_line(text, message):
    with pytest.raises(InputError, match=message):
        read_text(text, format="pipedream")


def test_a_minibatch_of_nothing_is_refused():
    with pytest.raises(InputError, match="minibatch size is 0"):
        read_text(NODE.format(1, "4"), options=ImportOptions(minibatch_size=0))
