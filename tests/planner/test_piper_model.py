"""The `piper` search model and `piper_dp`: published values, an independent evaluator, brute force."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers import PIPER_BANDWIDTH, published, verdict
from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.piper import DegreeCost, PiperCost, PiperEdge, Run
from planner.errors import LimitError
from planner.ideals import Groups, set_of
from planner.optimizers import _recompute_choice
from planner.optimizers import piper_dp as search
from planner.optimizers._recompute_choice import StageRuns
from planner.optimizers.piper_dp import piper_dp
from profiles.paper_models import piper_cost, piper_layers

TEXT = (Path(__file__).parent.parent / "instances" / "piper" / "bert32a100.json").read_text()
LONG = 64
"""Rows with more devices take seconds each."""


def rows():
    for row in published("piper"):
        marks = [pytest.mark.slow] if row["devices"] > LONG else []
        yield pytest.param(row, id=f"{row['memory_gib']}GiB-{row['devices']}", marks=marks)


def cost_of(row):
    return piper_cost(
        TEXT,
        num_devices=row["devices"],
        memory_bytes=row["memory_gib"] * 2.0**30,
        bandwidth_bytes_per_s=PIPER_BANDWIDTH,
    )


def evaluate(row, stages):
    """Seconds per sample of a plan, from the raw file: (layer ids, d, t, ids that recompute) in pipeline order."""
    raw = json.loads(TEXT)
    name = {n["id"]: n["name"] for n in raw["nodes"]}
    repeated = {n for n in name.values() if list(name.values()).count(n) > 1}
    node = {f"{n['name']}#{n['id']}" if n["name"] in repeated else n["name"]: n for n in raw["nodes"]}
    assert sorted(layer for ids, *_ in stages for layer in ids) == sorted(node)
    assert sum(d * t for _, d, t, _ in stages) <= row["devices"]
    assert sum(d for _, d, _, _ in stages) <= raw["mbsInBatch"]
    place = {node[layer]["id"]: number for number, (ids, *_) in enumerate(stages) for layer in ids}
    assert all(place[e["sourceId"]] <= place[e["destId"]] for e in raw["edges"])
    worst = 0.0
    for number, (ids, d, t, recomputing) in enumerate(stages):
        assert raw["mbsInBatch"] % d == 0
        in_flight = -(-sum(other for _, other, _, _ in stages[number:]) // d)
        seconds = memory = moved = 0.0
        for layer in ids:
            wanted = "activation recomp" if layer in recomputing else "vanilla"
            way = next(w for w in node[layer]["TMPCs"][str(t)] if w["id"] == wanted)
            own = node[layer]["id"]
            seconds += way["timePerSample"] / d
            memory += way["memoryUsageA"] * in_flight + way["memoryUsageB"]
            moved += 4 * (d - 1) * way["parameterSize"] / d / raw["mbsInBatch"]
            for edge in raw["edges"]:
                ends = place[edge["sourceId"]] == number, place[edge["destId"]] == number
                if edge["destId"] == own and ends == (False, True):
                    moved += 2 * (edge["communicationCost"] + way["syncTimeFw"][str(edge["sourceId"])]) / d
                if edge["sourceId"] == own and ends == (True, False):
                    moved += 2 * (edge["communicationCost"] + way["syncTimeBw"][str(edge["destId"])]) / d
        assert memory <= row["memory_gib"] * 2**30
        worst = max(worst, seconds + moved / PIPER_BANDWIDTH)
    return worst


@pytest.mark.parametrize("row", list(rows()))
def test_published_values_come_out(row):
    found = piper_dp(cost_of(row))
    if row["seconds"] is None:
        assert found is None
        return
    assert verdict(row, found.value_s) == "equal"
    assert len(found.stages) == row.get("stages", len(found.stages))
    assert row.get("equal_stages_s") is None or found.value_s <= row["equal_stages_s"] + 5e-9
    assert found.bound_s == pytest.approx(found.value_s, rel=1e-8)
    names = piper_layers(TEXT)
    stages = [
        (
            [n for g, n in enumerate(names) if stage.layers >> g & 1],
            stage.degree,
            stage.tensor,
            {n for g, n in enumerate(names) if stage.recomputed >> g & 1},
        )
        for stage in found.stages
    ]
    assert evaluate(row, stages) == pytest.approx(found.value_s, rel=1e-12)


# Brute force on small graphs


@st.composite
def costs(draw):
    count = draw(st.integers(1, 4))
    possible = list(itertools.combinations(range(count), 2))
    edges = sorted(draw(st.lists(st.sampled_from(possible), unique=True))) if possible else []
    figure = st.integers(0, 6)
    layers = []
    for g in range(count):
        degrees = {1, *draw(st.sets(st.sampled_from([2, 3]), max_size=1))}
        sync = {
            "sync_from": {a: draw(figure) for a, b in edges if b == g},
            "sync_to": {b: draw(figure) for a, b in edges if a == g},
        }
        made = {}
        for t in sorted(degrees):
            plain = Run(compute_s=draw(st.integers(1, 9)) / t, kept_bytes=draw(figure), fixed_bytes=draw(figure))
            again = Run(compute_s=plain.compute_s + draw(figure), kept_bytes=draw(figure), fixed_bytes=draw(figure))
            runs = (plain, again) if draw(st.booleans()) else (plain,)
            made[t] = DegreeCost(runs=runs, weight_bytes=draw(figure), **(sync if t > 1 else {}))
        layers.append(made)
    return PiperCost(
        groups=Groups(
            layers=tuple((g,) for g in range(count)),
            of_layer=tuple(range(count)),
            before=tuple(set_of(a for a, b in edges if b == g) for g in range(count)),
            after=tuple(set_of(b for a, b in edges if a == g) for g in range(count)),
        ),
        layers=layers,
        edges=tuple(PiperEdge(source=a, target=b, num_bytes=draw(figure)) for a, b in edges),
        bandwidth_bytes_per_s=draw(st.sampled_from([1.0, 4.0, 32.0])),
        num_microbatches=draw(st.sampled_from([2, 4, 6])),
        num_devices=draw(st.integers(1, 5)),
        memory_bytes=draw(st.sampled_from([8.0, 16.0, 30.0, 1e9])),
    )


def brute_force(cost):
    """The least bottleneck over all divisions from the end, degrees and recomputing subsets."""
    whole = cost.groups.everything

    def best(ideal, devices, total):
        """Layers of `ideal` still to be placed in front of stages whose degrees sum up to `total`."""
        if not ideal:
            return 0.0
        found = math.inf
        for start in range(ideal):
            if start & ~ideal or not cost.groups.is_ideal(start):
                continue
            layers = ideal & ~start
            subsets = [s for s in range(whole + 1) if not s & ~layers]
            for t, d in itertools.product(cost.tensors(), range(1, devices + 1)):
                if d * t > devices or total + d > cost.num_microbatches or cost.num_microbatches % d:
                    continue
                if any(t not in cost.layers[g] for g in range(len(cost.layers)) if layers >> g & 1):
                    continue
                y = -(-(total + d) // d)
                here = min(stage_s(cost, layers, start, d, t, y, subset) for subset in subsets)
                if here < found:
                    found = min(found, max(here, best(start, devices - d * t, total + d)))
        return found

    return best(whole, cost.num_devices, 0)


def stage_s(cost, layers, before, d, t, y, recomputed):
    """One stage, by the formula."""
    members = [g for g in range(len(cost.layers)) if layers >> g & 1]
    entries = [cost.layers[g][t] for g in members]
    if any(recomputed >> g & 1 and len(cost.layers[g][t].runs) == 1 for g in members):
        return math.inf
    runs = [entry.runs[recomputed >> g & 1] for g, entry in zip(members, entries, strict=True)]
    if sum(run.kept_bytes * y + run.fixed_bytes for run in runs) > cost.memory_bytes:
        return math.inf
    moved = 0.0
    for edge in cost.edges:
        if edge.source in members and edge.target not in members:
            moved += 2 * (edge.num_bytes + cost.layers[edge.source][t].sync_to.get(edge.target, 0))
        if edge.target in members and edge.source not in members:
            moved += 2 * (edge.num_bytes + cost.layers[edge.target][t].sync_from.get(edge.source, 0))
    sync = 4 * (d - 1) / d * sum(entry.weight_bytes for entry in entries) / cost.num_microbatches
    return sum(run.compute_s for run in runs) / d + (moved / d + sync) / cost.bandwidth_bytes_per_s


@settings(max_examples=60)
@given(cost=costs())
def test_the_search_agrees_with_brute_force(cost):
    wanted, found = brute_force(cost), piper_dp(cost)
    if found is None:
        assert math.isinf(wanted)
        return
    assert found.value_s == pytest.approx(wanted, rel=1e-8)
    assert found.num_devices <= cost.num_devices
    assert (
        set_of(g for s in found.stages for g in range(len(cost.layers)) if s.layers >> g & 1) == cost.groups.everything
    )
    for stage in found.stages:
        figures = (stage.layers, stage.before, stage.degree, stage.tensor, stage.in_flight, stage.recomputed)
        assert cost.seconds(stage) == pytest.approx(stage_s(cost, *figures), rel=1e-12)


@settings(max_examples=25)
@given(cost=costs())
def test_with_choices_by_ratio_the_bound_is_below_the_optimum(cost):
    wanted = brute_force(cost)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_recompute_choice, "MAX_CHOICES", 0)
        found = piper_dp(cost)
    if found is not None:
        assert found.bound_s * (1 - 1e-8) <= wanted <= found.value_s * (1 + 1e-8)


# Recomputation within one stage


@given(
    runs=st.lists(
        st.tuples(*[st.integers(0, 8)] * 6).map(
            lambda v: (Run(compute_s=v[0], kept_bytes=v[1], fixed_bytes=v[2]),
                       Run(compute_s=v[0] + v[3], kept_bytes=v[4], fixed_bytes=v[5]))
        ),
        min_size=1,
        max_size=6,
    ),
    memory=st.integers(0, 60),
)  # fmt: skip
def test_recomputing_layers_are_chosen_exactly(runs, memory):
    members = list(enumerate(runs))
    stage = StageRuns(members, memory)
    found, bound = stage.least_compute(4)
    greedy = np.array([stage._by_ratio(y)[1:] for y in range(1, 5)])
    for y in range(1, 5):
        wanted = math.inf
        for chosen in itertools.product((0, 1), repeat=len(runs)):
            picked = [pair[c] for pair, c in zip(runs, chosen, strict=True)]
            if sum(r.kept_bytes * y + r.fixed_bytes for r in picked) <= memory:
                wanted = min(wanted, sum(r.compute_s for r in picked))
        assert found[y] == bound[y] == wanted
        assert greedy[y - 1, 1] <= wanted <= greedy[y - 1, 0]
        if math.isfinite(wanted):
            picked = [pair[stage.chosen(y) >> g & 1] for g, pair in members]
            assert sum(r.compute_s for r in picked) == wanted
            assert sum(r.kept_bytes * y + r.fixed_bytes for r in picked) <= memory


# Properties


def test_more_memory_devices_or_bandwidth_never_hurt():
    def value(**fields):
        found = piper_dp(piper_cost(TEXT, **{"num_devices": 8, "memory_bytes": 8 * 2.0**30} | fields))
        return found.value_s if found else math.inf

    base = value()
    assert value(memory_bytes=16 * 2.0**30) <= base
    assert value(num_devices=12) <= base
    assert value(bandwidth_bytes_per_s=PIPER_BANDWIDTH) <= base
    assert value(memory_bytes=2**30) == math.inf


def test_degrees_that_a_layer_lacks_have_no_price():
    cost = cost_of({"devices": 8, "memory_gib": 80})
    whole = cost.groups.everything
    assert math.isinf(cost.seconds(StageShape(layers=whole, before=0, tensor=3)))
    assert math.isinf(cost.seconds(StageShape(layers=whole, before=0, degree=7)))
    assert math.isfinite(cost.seconds(StageShape(layers=whole, before=0, degree=8)))


def test_too_large_a_table_is_refused(monkeypatch):
    monkeypatch.setattr(search, "MAX_CELLS", 1000)
    with pytest.raises(LimitError, match="table cells"):
        piper_dp(cost_of({"devices": 8, "memory_gib": 80}))
