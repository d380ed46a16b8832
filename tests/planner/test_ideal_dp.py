"""The dynamic program over ideals: published optima, brute force, what it refuses and what it proves."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster import Cluster, Device, DeviceType, Link
from planner.costs.model import CostModel
from planner.graph import Edge, GraphIndex, Layer, LayerGraph, TiedParameters
from planner.ideals import bits, group_layers
from planner.optimizers import OPTIMIZERS
from planner.optimizers import ideal_dp as module
from planner.optimizers.base import Clock, SearchContext
from planner.options import Objective, SearchModel, SearchOptions
from planner.partition.exact_pass import solve
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.verify import verify
from planner.workload import Communication, Inference, Training
from profiles.importers import read_text

INSTANCES = Path(__file__).parent.parent / "instances" / "device-placement"
OPTIMA_MS = {
    "bert24_inference": 17.7899,
    "bert24_training": 41.7458,
    "resnet50_inference": 33.7747,
    "op_bert_l-3_inference": 27.9186,
}
"""What the authors' own program prints for these files (tests/instances/ORIGIN.md)."""


def context_of(problem, limit_s=60.0, **options):
    chosen = SearchOptions(objective=Objective.THROUGHPUT, **options)
    return SearchContext(problem=problem, options=chosen, costs=CostModel(problem), clock=Clock(limit_s))


def search(problem, **options):
    context = context_of(problem, **options)
    optimizer = OPTIMIZERS["ideal_dp"]
    assert optimizer.supports(context) == ""
    return optimizer.search(context)


def problem_of(model):
    return Problem(graph=model.graph, profiles=model.profiles, cluster=model.cluster, workload=model.workload)


@pytest.mark.parametrize(("name", "value"), OPTIMA_MS.items())
def test_published_optima_are_reached_and_the_plans_are_valid(name, value):
    text = (INSTANCES / f"{name}.json").read_text()
    problem = problem_of(read_text(text))
    outcome = search(problem)
    best = outcome.candidates[0]
    assert best.objective_s * 1e3 == pytest.approx(value, rel=1e-5)
    assert outcome.exact
    assert outcome.finished
    assert outcome.bound_s == pytest.approx(best.objective_s, rel=1e-9)
    assert verify(best.plan, problem) == ()
    assert load_of_file(json.loads(text), best.plan) == pytest.approx(best.objective_s * 1e3, rel=1e-9)


def load_of_file(raw, plan):
    """The largest load of the plan in the file's own words: no part of the planner is used."""
    owner = {name: n for n, stage in enumerate(plan.stages) for name in stage.layers}
    of_class = {node.get("colorClass"): owner[node["name"]] for node in raw["nodes"] if node["name"] in owner}
    stage_of = {node["id"]: owner.get(node["name"], of_class.get(node.get("colorClass"))) for node in raw["nodes"]}
    on_cpu = [stage.replicas[0][0].startswith("cpu") for stage in plan.stages]
    loads = [0.0] * len(plan.stages)
    for node in raw["nodes"]:
        loads[stage_of[node["id"]]] += node["cpuLatency" if on_cpu[stage_of[node["id"]]] else "fpgaLatency"]
    ends = {(e["sourceId"], stage_of[e["destId"]], e["cost"]) for e in raw["edges"]}
    crossing = {(source, stage, cost) for source, stage, cost in ends if stage_of[source] != stage}
    paid = crossing | {(source, stage_of[source], cost) for source, _, cost in crossing}
    for _, stage, cost in paid:
        loads[stage] += 0.0 if on_cpu[stage] else cost
    return max(loads)


@st.composite
def kernels(draw):
    """A random graph with tensors, two device classes, sizes and layers that one class cannot run."""
    count = draw(st.integers(1, 6))
    pairs = list(itertools.combinations(range(count), 2))
    arcs = sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []
    index = GraphIndex(
        LayerGraph(
            layers=tuple(Layer(id=str(i)) for i in range(count)),
            edges=tuple(Edge(source=str(a), target=str(b)) for a, b in arcs),
        )
    )
    small = st.integers(0, 9)
    cuts = []
    for tensor in index.tensors:
        members = sum(1 << i for i in (tensor.source, *tensor.targets))
        cuts.append(
            (tensor, Cut(groups=members, cost_s=draw(small), received_bytes=draw(small), returned_bytes=draw(small)))
        )
    sizes = [draw(small) for _ in range(count)]
    work = st.one_of(small, st.just(math.inf))
    classes = [
        DeviceClass(
            count=draw(st.integers(0, 3)),
            work_s=[float(draw(work)) for _ in range(count)],
            size_bytes=sizes,
            limit_bytes=draw(st.integers(0, 60)),
            overhead_s=draw(small),
            pays=pays,
        )
        for pays in (True, False)
    ]
    return index, classes, cuts, draw(st.one_of(st.none(), st.integers(1, 3)))


def brute_force(index, classes, cuts, num_stages):
    """Every assignment of layers to numbered stages and of stages to classes, priced by definition."""
    best = math.inf
    for k in [num_stages] if num_stages else range(1, len(index) + 1):
        for stage_of in itertools.product(range(k), repeat=len(index)):
            forward = all(stage_of[p] <= stage_of[i] for i in range(len(index)) for p in index.predecessors[i])
            if forward and len(set(stage_of)) == k:
                for kinds in itertools.product(range(len(classes)), repeat=k):
                    if all(kinds.count(c) <= entry.count for c, entry in enumerate(classes)):
                        best = min(best, price(index, classes, cuts, stage_of, kinds))
    return best


def price(index, classes, cuts, stage_of, kinds):
    load = [classes[c].overhead_s for c in kinds]
    size = [0] * len(kinds)
    for layer, stage in enumerate(stage_of):
        load[stage] += classes[kinds[stage]].work_s[layer]
        size[stage] += classes[kinds[stage]].size_bytes[layer]
    for tensor, cut in cuts:
        source = stage_of[tensor.source]
        readers = {stage_of[t] for t in tensor.targets} - {source}
        for stage in readers:
            load[stage] += cut.cost_s * classes[kinds[stage]].pays
            size[stage] += cut.received_bytes
        if readers:
            load[source] += cut.cost_s * classes[kinds[source]].pays
            size[source] += cut.returned_bytes
    fits = all(size[s] <= classes[c].limit_bytes for s, c in enumerate(kinds))
    return max(load) if fits else math.inf


@given(kernels())
def test_the_kernel_equals_brute_force(case):
    index, classes, cuts, num_stages = case
    groups = group_layers(index)
    position = {i: groups.of_layer[i] for i in range(len(index))}
    assert len(groups) == len(index)  # nothing is colocated here, groups are layers in another order
    moved = [dataclasses.replace(cut, groups=sum(1 << position[i] for i in bits(cut.groups))) for _, cut in cuts]
    ordered = [
        dataclasses.replace(
            entry,
            work_s=[entry.work_s[members[0]] for members in groups.layers],
            size_bytes=[entry.size_bytes[members[0]] for members in groups.layers],
        )
        for entry in classes
    ]
    found = solve(
        BottleneckInstance(groups=groups, cuts=tuple(moved), classes=tuple(ordered), num_stages=num_stages), None
    )
    wanted = brute_force(index, classes, cuts, num_stages)
    if found is None:
        assert wanted == math.inf
        return
    assert found.value_s == pytest.approx(wanted)
    stage_of = [0] * len(index)
    for number, (_, members) in enumerate(found.stages):
        for layer in groups.positions(members):
            stage_of[layer] = number
    kinds = [c for c, _ in found.stages]
    assert price(index, classes, cuts, stage_of, kinds) == pytest.approx(wanted)


def diamond(memory=100, count=2, latency=0.0, **work):
    """a -> b, a -> c, b -> d, c -> d of 1, 2, 3, 1 s, 8 bytes of weights each, tensors of 1 byte over 10 B/s."""
    layers = tuple(Layer(id=name, parameter_bytes=8) for name in "abcd")
    edges = tuple(Edge(source=a, target=b, bytes_per_sample=1) for a, b in ("ab", "ac", "bd", "cd"))
    costs = {
        name: LayerCost(forward_s=s, backward_s=s, workspace_bytes=4)
        for name, s in zip("abcd", (1.0, 2.0, 3.0, 1.0), strict=True)
    }
    devices = tuple(Device(id=f"g{i}", type="gpu") for i in range(count))
    return Problem(
        graph=LayerGraph(layers=layers, edges=edges),
        profiles=(Profile(device_type="gpu", tables=(CostTable(microbatch_size=1, layers=costs),)),),
        cluster=Cluster(
            device_types=(DeviceType(name="gpu", memory_bytes=memory),),
            devices=devices,
            links=tuple(Link(a=d.id, b="bus", bandwidth_bytes_per_s=10.0, latency_s=latency) for d in devices)
            if count > 1
            else (),
        ),
        workload=Inference(global_batch_size=2, microbatch_size=1, communication=Communication.BLOCKING, **work),
    )


def test_a_diamond_by_hand():
    outcome = search(diamond())
    assert [stage.layers for stage in outcome.candidates[0].plan.stages] in (
        [("a", "c"), ("b", "d")],
        [("a", "b"), ("c", "d")],
    )
    assert outcome.candidates[0].objective_s == pytest.approx(4.2)  # 4 s and two tensors of 0.1 s


def test_memory_decides_with_workspace_and_buffers():
    assert search(diamond(memory=36, count=1)).candidates[0].plan.stages[0].layers == ("a", "b", "c", "d")
    tight = search(diamond(memory=22))  # two layers, their workspace, and two received tensors
    assert [len(stage.layers) for stage in tight.candidates[0].plan.stages] == [2, 2]
    none = search(diamond(memory=21))
    assert none.candidates == ()
    assert not none.exact  # weights alone would fit: only the recurrence without workspace is a proof
    proof = search(diamond(memory=15))
    assert proof.candidates == ()
    assert proof.exact


def test_the_number_of_stages_can_be_given():
    outcome = search(diamond(count=4), num_stages=4)
    assert len(outcome.candidates[0].plan.stages) == 4
    assert search(diamond(count=2), num_stages=3).candidates == ()


def test_latency_makes_the_value_a_bound():
    outcome = search(diamond(latency=0.5))
    assert outcome.bound_s == pytest.approx(4.2)
    assert outcome.candidates[0].objective_s > outcome.bound_s
    assert not outcome.exact


def test_training_counts_gradients_both_ways():
    base = diamond()
    work = Training(global_batch_size=2, microbatch_size=1, communication=Communication.BLOCKING)
    outcome = search(dataclasses.replace(base, workload=work))
    assert outcome.candidates[0].objective_s == pytest.approx(8.4)
    assert outcome.exact


def test_too_many_ideals_end_the_search_with_the_reason_and_a_plan(monkeypatch):
    monkeypatch.setattr(module, "MAX_IDEALS", 3)
    outcome = search(diamond())
    assert outcome.candidates[0].objective_s == pytest.approx(4.2)
    assert not outcome.finished
    assert not outcome.exact
    assert outcome.bound_s is None
    assert "the graph of 4 groups has more than 3 ideals" in outcome.notes[0]


def test_an_expired_clock_leaves_what_was_found_and_claims_nothing():
    context = context_of(diamond(), limit_s=0.0)
    outcome = OPTIMIZERS["ideal_dp"].search(context)
    assert not outcome.finished
    assert not outcome.exact
    assert outcome.bound_s is None


TIED = (TiedParameters(layers=("a", "d"), parameter_bytes=8),)


@pytest.mark.parametrize(
    ("problem", "options", "reason"),
    [
        (diamond(), {"search_model": SearchModel.OVERLAPPED}, "blocking search model only"),
        (diamond(tensor=2), {}, "the tensor degree is 2"),
        (dataclasses.replace(diamond(), graph=dataclasses.replace(diamond().graph, tied=TIED)), {}, "tied"),
    ],
)
def test_what_it_cannot_do_is_said(problem, options, reason):
    assert reason in OPTIMIZERS["ideal_dp"].supports(context_of(problem, **options))
