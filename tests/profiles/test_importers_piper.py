"""Piper's JSON: seconds, weights per degree, memory, edges, devices; its traps; what is refused."""

import json
from pathlib import Path

import pytest

from planner.costs.model import CostModel
from planner.errors import InputError
from planner.problem import Problem
from planner.workload import Training
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.paper_models import piper_cost

FOLDER = Path(__file__).parent.parent / "instances" / "piper"
BERT, RESNET = ((FOLDER / f"{name}.json").read_text() for name in ("bert32a100", "resnet"))


def problem_of(text):
    model = read_text(text)
    return Problem(graph=model.graph, profiles=model.profiles, cluster=model.cluster, workload=model.workload)


@pytest.mark.parametrize(("text", "unit"), [(BERT, 1.0), (RESNET, 1e-3)], ids=["bert", "resnet"])
def test_every_figure_of_the_file_comes_through(text, unit):
    raw, problem = json.loads(text), problem_of(text)
    assert IMPORTERS["piper"].sniff(text[:65_536].encode())
    names = {node["id"]: layer.id for node, layer in zip(raw["nodes"], problem.graph.layers, strict=True)}
    (profile,) = problem.profiles
    assert ("seconds" if unit == 1.0 else "milliseconds") in profile.provenance.notes[0]
    for node, layer in zip(raw["nodes"], problem.graph.layers, strict=True):
        assert layer.parameter_bytes == node["TMPCs"]["1"][0]["parameterSize"]
        for table in profile.tables:
            plain, again = node["TMPCs"][str(table.tensor)]
            cost = table.layers[layer.id]
            assert cost.forward_s + cost.backward_s == pytest.approx(plain["timePerSample"] * unit, rel=1e-12)
            repeated = (again["timePerSample"] - plain["timePerSample"]) * unit
            if 0 < repeated < plain["timePerSample"] * unit:
                assert cost.forward_s == pytest.approx(repeated)
            assert cost.activation_bytes == plain["memoryUsageA"]
    tensors = {
        (tensor.source, target): tensor.bytes_per_sample
        for tensor in problem.index.tensors
        for target in tensor.targets
    }
    ends = problem.index.position
    for edge in raw["edges"]:
        pair = ends[names[edge["sourceId"]]], ends[names[edge["destId"]]]
        assert tensors[pair] == edge["communicationCost"]
    assert len(problem.cluster.devices) == raw["maxDevices"]
    assert problem.network.route("device0", "device9").bandwidth_bytes_per_s == raw["bandwidth"]
    assert isinstance(problem.workload, Training)
    assert problem.workload.global_batch_size == raw["mbsInBatch"]


def test_weights_at_other_tensor_degrees_are_divided_as_in_the_file():
    raw, problem = json.loads(BERT), problem_of(BERT)
    for node, layer in zip(raw["nodes"], problem.graph.layers, strict=True):
        divided = layer.parameter_bytes - layer.replicated_parameter_bytes
        for tensor in (2, 4, 8):
            wanted = node["TMPCs"][str(tensor)][0]["parameterSize"]
            assert layer.replicated_parameter_bytes + divided / tensor == pytest.approx(wanted, abs=8)


def test_weights_and_gradients_are_the_fixed_memory_of_the_file():
    raw, problem = json.loads(BERT), problem_of(BERT)
    work = problem.workload
    per_byte = (work.weight_bytes_per_parameter + work.gradient_bytes_per_parameter) / 4
    for node, layer in zip(raw["nodes"], problem.graph.layers, strict=True):
        assert layer.parameter_bytes * per_byte == node["TMPCs"]["1"][0]["memoryUsageB"]
    assert work.optimizer_bytes_per_parameter == 0


def test_prices_are_those_of_the_device_type_that_the_options_name():
    model = read_text(BERT, options=ImportOptions(device_type="A100"))
    problem = Problem(graph=model.graph, profiles=model.profiles, cluster=model.cluster, workload=model.workload)
    prices = CostModel(problem).layer_prices("A100", 1, 1)
    raw = json.loads(BERT)
    total = sum(node["TMPCs"]["1"][0]["timePerSample"] for node in raw["nodes"])
    assert sum(prices.forward_s) + sum(prices.backward_s) == pytest.approx(total)


def test_piper_s_own_model_takes_the_numbers_as_they_are():
    raw, cost = json.loads(RESNET), piper_cost(RESNET)
    found = sorted(costs[1].runs[0].compute_s for costs in cost.layers)
    assert found == sorted(node["TMPCs"]["1"][0]["timePerSample"] for node in raw["nodes"])
    assert (cost.num_devices, cost.bandwidth_bytes_per_s, cost.memory_bytes) == (10, 25e9, 80e9)
    assert piper_cost(RESNET, memory_bytes=0).memory_bytes == 0


def changed(path, value):
    raw = json.loads(BERT)
    *way, last = path
    at = raw
    for key in way:
        at = at[key]
    at[last] = value
    return json.dumps(raw)


PLAIN = ("nodes", 1, "TMPCs", "1", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("maxDevices",), 0, "maxDevices is 0"),
        (("bandwidth",), 0.0, "bandwidth is 0.0"),
        (("mbsInBatch",), 0, "mbsInBatch is 0"),
        (("nodes", 1, "id"), 0, "node 0 is there twice"),
        ((*PLAIN, "timePerSample"), -1.0, "node 1: timePerSample is -1.0"),
        ((*PLAIN, "memoryUsageA"), -1.0, "node 1: memoryUsageA"),
        ((*PLAIN, "syncTimeBw"), {"3": -5.0}, "node 1: syncTimeBw 3 is -5.0"),
        ((*PLAIN, "parameterSize"), 1.0, "has other weights or synchronisation"),
        (("nodes", 1, "TMPCs", "zwei"), [], "tensor degree 'zwei'"),
        (("nodes", 1, "TMPCs", "1"), [], "has no TMPC at tensor degree 1"),
        (("edges", 0, "destId"), 99, "destId 99 is no node"),
        (("edges", 0, "communicationCost"), -1.0, "communicationCost is -1.0"),
    ],
)
def test_bad_values_are_named(path, value, message):
    with pytest.raises(InputError, match=message):
        read_text(changed(path, value), format="piper")


def test_three_ways_to_run_a_layer_are_too_many():
    ways = json.loads(BERT)["nodes"][1]["TMPCs"]["1"]
    with pytest.raises(InputError, match="3 TMPCs at degree 1"):
        read_text(changed(("nodes", 1, "TMPCs", "1"), [*ways, ways[0]]), format="piper")
