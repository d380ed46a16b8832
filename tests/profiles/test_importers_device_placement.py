"""The device-placement JSON: times, tensors, memory and colours come through exactly; training graphs are folded."""

import json
import random
from pathlib import Path

import pytest

from planner import codec
from planner.cluster import DeviceKind
from planner.costs.model import CostModel
from planner.costs.objective import objective_s
from planner.errors import InputError
from planner.ideals import group_layers
from planner.options import Objective, SearchModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.verify import verify
from planner.workload import Communication, Inference, Training
from profiles.importers import IMPORTERS, read_text
from profiles.model import ProfiledModel

FILES = sorted((Path(__file__).parent.parent / "instances" / "device-placement").glob("*.json"))
GIB16 = 17_185_374_208


def problem_of(model):
    return Problem(graph=model.graph, profiles=model.profiles, cluster=model.cluster, workload=model.workload)


def assert_faithful(text):
    """Seconds, transfer times, sizes, colours and devices of the file, found again in the nouns."""
    raw = json.loads(text)
    assert IMPORTERS["device-placement"].sniff(text[:65_536].encode())
    model = read_text(text)
    problem = problem_of(model)
    assert len({node["name"] for node in raw["nodes"]}) == len(raw["nodes"])
    forward = {node["id"]: node for node in raw["nodes"] if not node["isBackwardNode"]}
    pairs = {node["colorClass"]: node for node in raw["nodes"] if node["isBackwardNode"]}
    assert list(problem.index.position) == [layer.id for layer in problem.index.layers]
    assert {layer.id for layer in model.graph.layers} == {node["name"] for node in forward.values()}
    for node in forward.values():
        both = [node, *([pairs[node["colorClass"]]] if pairs else [])]
        layer = problem.index.layers[problem.index.position[node["name"]]]
        assert layer.parameter_bytes == sum(n["size"] for n in both)
        for kind, field in (("accelerator", "fpgaLatency"), ("cpu", "cpuLatency")):
            cost = problem.profile_of[kind].tables[0].layers[node["name"]]
            assert cost.forward_s * 1e3 == pytest.approx(node[field], rel=1e-12)
            assert cost.backward_s * 1e3 == pytest.approx(both[1][field] if pairs else 0.0, rel=1e-12)
    route = problem.network.route("accelerator0", "accelerator1")
    back = {node["id"] for node in raw["nodes"]} - set(forward)
    arcs = [edge for edge in raw["edges"] if edge["sourceId"] not in back]
    assert len(model.graph.edges) == len(arcs)
    for edge in arcs:
        (tensor,) = problem.index.outputs[problem.index.position[forward[edge["sourceId"]]["name"]]]
        seconds = route.seconds(problem.index.tensors[tensor].bytes_per_sample)
        assert seconds * 1e3 == pytest.approx(edge["cost"], rel=1e-9)
    assert sum(d.type == "accelerator" for d in model.cluster.devices) == raw["maxFPGAs"]
    assert sum(d.type == "cpu" for d in model.cluster.devices) == raw["maxCPUs"]
    assert problem.memory_limits["accelerator0"] == raw["maxSizePerFPGA"]
    colors = {}
    for node in forward.values():
        if node.get("colorClass") is not None:
            colors.setdefault(node["colorClass"], []).append(node["name"])
    assert set(model.graph.colocated) == {tuple(c) for c in colors.values() if len(c) > 1}
    assert codec.loads(ProfiledModel, codec.dumps(model)) == model


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_figure_of_the_file_comes_through(path):
    assert_faithful(path.read_text())


UNMIRRORED = {"bert_l-6_training.json": 243, "resnet50_training.json": 193}
"""Operator graphs with a backward part of its own: groups that the authors' program has."""


def test_all_files_beside_the_repository_come_through(shared_bench):
    paths = sorted((shared_bench / "device-placement").glob("*/*Graphs/*.json"))
    assert len(paths) >= 14
    for path in paths:
        if path.parent.name == "OperatorGraphs" and path.name in UNMIRRORED:
            assert_loads_of_any_partition(json.loads(path.read_text()), UNMIRRORED[path.name])
        else:
            assert_faithful(path.read_text())


def assert_loads_of_any_partition(raw, num_groups):
    """Stages cost what the file says, whatever the partition: prefixes of random lengths, and whole classes."""
    problem = problem_of(read_text(json.dumps(raw)))
    groups = group_layers(problem.index)
    assert len(groups) == num_groups
    assert groups_of_file(raw, problem, groups)
    draw = random.Random(1)
    for _ in range(5):
        ends = sorted(draw.sample(range(1, len(groups)), 2))
        sets = [range(ends[0]), range(*ends), range(ends[1], len(groups))]
        plan = Plan(
            stages=tuple(
                Stage(
                    layers=tuple(problem.index.layers[i].id for g in members for i in groups.layers[g]),
                    replicas=((f"accelerator{number}",),),
                )
                for number, members in enumerate(sets)
            ),
            schedule="gpipe",
            microbatch_size=1,
            num_microbatches=64,
        )
        assert verify(plan, problem) == ()
        priced = CostModel(problem).price(plan)
        value = objective_s(problem, priced, Objective.THROUGHPUT, SearchModel.BLOCKING)
        assert value * 1e3 == pytest.approx(load_of_file(raw, plan), rel=1e-9)
        assert sum(s.memory.weights_bytes for s in priced.stages) == pytest.approx(sum(n["size"] for n in raw["nodes"]))


def groups_of_file(raw, problem, groups):
    """Whether colour classes are whole groups."""
    layers = {layer.id for layer in problem.index.layers}
    homes = {}
    for node in raw["nodes"]:
        if node.get("colorClass") is not None and node["name"] in layers:
            homes.setdefault(node["colorClass"], set()).add(groups.of_layer[problem.index.position[node["name"]]])
    return all(len(found) == 1 for found in homes.values())


def load_of_file(raw, plan):
    """The largest load of the plan in the file's own words: no part of the planner is used."""
    owner = {name: n for n, stage in enumerate(plan.stages) for name in stage.layers}
    of_class = {node.get("colorClass"): owner[node["name"]] for node in raw["nodes"] if node["name"] in owner}
    stage_of = {node["id"]: owner.get(node["name"], of_class.get(node.get("colorClass"))) for node in raw["nodes"]}
    loads = [0.0] * len(plan.stages)
    for node in raw["nodes"]:
        loads[stage_of[node["id"]]] += node["fpgaLatency"]
    crossing = {(e["sourceId"], stage_of[e["destId"]], e["cost"]) for e in raw["edges"]}
    crossing = {arc for arc in crossing if stage_of[arc[0]] != arc[1]}
    for _, stage, cost in crossing | {(source, stage_of[source], cost) for source, _, cost in crossing}:
        loads[stage] += cost
    return max(loads)


def read(name):
    return read_text(next(path for path in FILES if path.name == name).read_text())


def test_the_cluster_and_the_workload_come_with_the_file():
    model = read("bert24_inference.json")
    kinds = {kind.name: kind for kind in model.cluster.device_types}
    assert kinds["accelerator"].memory_bytes == GIB16
    assert kinds["cpu"].kind is DeviceKind.CPU
    assert isinstance(model.workload, Inference)
    assert model.workload.communication is Communication.BLOCKING
    assert any("milliseconds" in note for note in model.profiles[0].provenance.notes)


def test_memory_counts_each_size_once():
    """One stage of everything receives nothing: its memory is the sum of the file's sizes."""
    for name in ("bert24_inference.json", "bert24_training.json"):
        model = read(name)
        problem = problem_of(model)
        plan = whole_on_one(problem)
        memory = CostModel(problem).price(plan).stages[0].memory
        raw = json.loads(next(path for path in FILES if path.name == name).read_text())
        assert memory.total_bytes == sum(node["size"] for node in raw["nodes"])
        assert verify(plan, problem) == ()


def whole_on_one(problem):
    stage = Stage(layers=tuple(problem.index.position), replicas=(("accelerator0",),))
    return Plan(
        stages=(stage,),
        schedule="gpipe",
        microbatch_size=1,
        num_microbatches=problem.workload.global_batch_size,
    )


@pytest.mark.parametrize(("name", "value"), [("bert24_inference", 92.406), ("bert24_training", 217.813)])
def test_everything_on_one_accelerator_takes_what_the_authors_program_says(name, value):
    problem = problem_of(read(f"{name}.json"))
    priced = CostModel(problem).price(whole_on_one(problem))
    assert priced.stages[0].pass_s * 1e3 == pytest.approx(value, rel=1e-5)


def test_training_files_are_folded_into_training():
    model = read("bert24_training.json")
    assert isinstance(model.workload, Training)
    assert len(model.graph.layers) == 32
    assert model.profiles[0].tables[0].layers["node5"].backward_s == 5.2e-5  # node5grad: 0.052 ms


def file(**changes):
    """A small valid file: 1 -> 2 -> 3, 1 -> 3; with the given fields changed."""
    nodes = [
        {"id": i, "name": f"n{i}", "cpuLatency": 2.0, "fpgaLatency": 1.0, "supportedOnFpga": 1, "isBackwardNode": 0,
         "colorClass": i, "size": 8.0} for i in (1, 2, 3)
    ]  # fmt: skip
    edges = [
        {"sourceId": a, "destId": b, "cost": 0.5 * a, "size": 100.0 * a} for a, b in ((1, 2), (2, 3), (1, 3))
    ]  # fmt: skip
    return {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges} | changes


def test_sizes_stay_when_times_are_proportional_to_them():
    model = read_text(json.dumps(file()))
    assert [edge.bytes_per_sample for edge in model.graph.edges] == [100, 200, 100]
    assert {link.bandwidth_bytes_per_s for link in model.cluster.links} == {200e3}


def test_times_are_kept_when_sizes_do_not_fit_them():
    values = file()
    values["edges"][1]["size"] = 7.0
    model = read_text(json.dumps(values))
    bandwidth = model.cluster.links[0].bandwidth_bytes_per_s
    assert [edge.bytes_per_sample / bandwidth for edge in model.graph.edges] == pytest.approx(
        [5e-4, 1e-3, 5e-4], rel=1e-9
    )
    assert any("do not fit" in note for note in model.profiles[0].provenance.notes)


def test_unsupported_nodes_are_missing_on_accelerators():
    values = file()
    values["nodes"][1]["supportedOnFpga"] = False
    problem = problem_of(read_text(json.dumps(values)))
    assert set(problem.profile_of["accelerator"].tables[0].layers) == {"n1", "n3"}
    assert set(problem.profile_of["cpu"].tables[0].layers) == {"n1", "n2", "n3"}


def test_without_cpus_there_is_no_cpu_profile():
    model = read_text(json.dumps(file(maxCPUs=0)))
    assert [profile.device_type for profile in model.profiles] == ["accelerator"]
    assert [kind.name for kind in model.cluster.device_types] == ["accelerator"]


def test_one_device_has_no_link():
    assert read_text(json.dumps(file(maxFPGAs=1, maxCPUs=0))).cluster.links == ()


def test_nodes_of_one_colour_are_colocated_and_names_are_made_unique():
    values = file()
    values["nodes"][2]["colorClass"] = 1
    values["nodes"][2]["name"] = "n1"
    model = read_text(json.dumps(values))
    assert model.graph.colocated == (("n1#1", "n1#3"),)


def with_backward(turned, **last):
    """`file()` with a backward partner 10 + i for every node and its edges turned round or repeated."""
    values = file()
    values["nodes"] += [
        node | {"id": 10 + node["id"], "name": f"b{node['id']}", "isBackwardNode": 1} for node in values["nodes"]
    ]
    ends = ("destId", "sourceId") if turned else ("sourceId", "destId")
    back = [
        {"sourceId": 10 + edge[ends[0]], "destId": 10 + edge[ends[1]], "cost": 0.5, "size": 100.0}
        for edge in values["edges"]
    ]
    for edge in values["edges"]:
        edge |= {"cost": 0.5, "size": 100.0}
    values["edges"] += [*back, {"sourceId": 3, "destId": 13, "cost": 0.5, "size": 100.0}]
    values["edges"][-2] |= last
    return json.dumps(values)


@pytest.mark.parametrize("turned", [True, False])
def test_backward_edges_may_mirror_or_repeat_the_forward_ones(turned):
    model = read_text(with_backward(turned))
    assert [layer.parameter_bytes for layer in model.graph.layers] == [16, 16, 16]
    assert len(model.graph.edges) == 3
    assert model.profiles[0].tables[0].layers["n1"].backward_s == 1e-3


@pytest.mark.parametrize("last", [{"destId": 12}, {"sourceId": 2}])
def test_backward_edges_that_mirror_nothing_are_tensors_of_their_own(last):
    raw = json.loads(with_backward(True, **last))
    problem = problem_of(read_text(json.dumps(raw)))
    assert {edge.tensor for edge in problem.graph.edges} >= {"output"}
    names = [layer.id for layer in problem.index.layers]
    assert names == ["n1", "n2", "n3"]
    for cut in (1, 2):
        stages = tuple(
            Stage(layers=tuple(part), replicas=((f"accelerator{n}",),))
            for n, part in enumerate((names[:cut], names[cut:]))
        )
        plan = Plan(stages=stages, schedule="gpipe", microbatch_size=1, num_microbatches=64)
        priced = CostModel(problem).price(plan)
        value = objective_s(problem, priced, Objective.THROUGHPUT, SearchModel.BLOCKING)
        assert value * 1e3 == pytest.approx(load_of_file(raw, plan), rel=1e-9)


def test_backward_nodes_without_a_partner_are_layers():
    """Node 3 alone runs backward; it reads from 1 and 2 and nothing reads from it."""
    values = file()
    values["nodes"][2]["isBackwardNode"] = 1
    problem = problem_of(read_text(json.dumps(values)))
    assert [layer.id for layer in problem.index.layers] == ["n1", "n2", "n3"]
    assert problem.profile_of["accelerator"].tables[0].layers["n3"].backward_s == 1e-3
    assert problem.profile_of["accelerator"].tables[0].layers["n3"].forward_s == 0.0


def test_a_backward_tensor_between_branches_is_refused_by_node():
    """Nodes 1 and 2 are independent in the forward pass, and 13 sends a gradient to both of them at once."""
    values = file()
    values["nodes"] += [n | {"id": 10 + n["id"], "name": f"b{n['id']}", "isBackwardNode": 1} for n in values["nodes"]]
    values["edges"] = [
        {"sourceId": a, "destId": b, "cost": 0.5, "size": 1.0} for a, b in ((1, 3), (2, 3), (13, 11), (13, 12), (3, 11))
    ]
    with pytest.raises(InputError, match=r"the output of node 13 \('b3'\) joins nodes"):
        read_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "message", "pointer"),
    [
        (lambda v: v.pop("maxFPGAs"), "/maxFPGAs: Field required", "/maxFPGAs"),
        (lambda v: v.update(maxFPGAs=0, maxCPUs=0), "both 0", "/maxFPGAs"),
        (lambda v: v.update(maxFPGAs=10**9), "maxFPGAs is 1000000000", "/maxFPGAs"),
        (lambda v: v.update(maxSizePerFPGA=-1.0), "maxSizePerFPGA is -1.0", "/maxSizePerFPGA"),
        (lambda v: v["nodes"][1].update(fpgaLatency=-1.0), "node 2: fpgaLatency is -1.0", "/nodes/1/fpgaLatency"),
        (lambda v: v["nodes"][1].update(cpuLatency="1"), "valid number", "/nodes/1/cpuLatency"),
        (lambda v: v["nodes"][1].update(id=1), "node 1 is there twice", "/nodes/1/id"),
        (lambda v: v["nodes"][1].update(name="a\nb"), "not printable", "/nodes/1/name"),
        (lambda v: v["edges"][0].update(destId=9), "destId 9 is no node", "/edges/0/destId"),
        (lambda v: v["edges"][2].update(cost=9.0), "all its edges must cost the same", None),
        (lambda v: v["edges"][1].update(cost=-0.5), "cost is -0.5", "/edges/1/cost"),
    ],
)
def test_bad_files_name_the_field(change, message, pointer):
    values = file()
    change(values)
    with pytest.raises(InputError, match=message) as caught:
        read_text(json.dumps(values))
    assert pointer is None or caught.value.pointer == pointer


def test_infinite_numbers_are_refused():
    text = json.dumps(file()).replace('"cost": 1.0', '"cost": 1e999')
    with pytest.raises(InputError, match="/edges/1/cost: Input should be a finite number"):
        read_text(text)


def test_times_that_no_bandwidth_can_give_back_are_refused():
    values = file()
    for edge, cost in zip(values["edges"], (1e-9, 1e9, 1e-9), strict=True):
        edge["cost"] = cost
    with pytest.raises(InputError, match="the transfer times differ too much"):
        read_text(json.dumps(values))
