"""The `pipedream` search model and `hierarchical_dp`: published values, an independent evaluator, brute force."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers import pipedream_instance, pipedream_rows, published, published_plan, verdict
from planner import Objective, ReplicaMode, Replication, SearchModel, SearchOptions, Status
from planner.cluster import Cluster, Device, DeviceType, Link
from planner.costs.model import CostModel
from planner.costs.objective import objective_s
from planner.costs.stage_costs.hierarchy import Level, hierarchy
from planner.costs.stage_costs.pipedream import CrossingTensor, PipeDreamCost
from planner.costs.stage_costs.pipedream_plan import pipedream_period_s, placed_period_s
from planner.errors import InputError, LimitError
from planner.ideals import Groups, enumerate_ideals, set_of
from planner.optimizers._levels import Levels, period_s
from planner.optimizers.base import OPTIMIZERS, Clock, SearchContext
from planner.optimizers.hierarchical_dp import placed_stages
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.service import plan
from planner.verify import verify
from planner.workload import Inference, Training
from profiles.importers import read_text
from profiles.paper_models import pipedream_layers

INSTANCES = Path(__file__).parent.parent / "instances"
ROWS = published("pipedream")


def row_name(row):
    widths = "x".join(f"{count}@{width / 1e9:g}" for count, width in row["levels"])
    return f"{row['model']}-{widths}{'' if row['transfers'] else '-free'}{'-straight' if row['straight'] else ''}"


# An evaluator of its own: reads the text, knows neither ideals nor bitsets, one level of code per level of machines.


class Evaluator:
    """PipeDream's figures of a plan, straight from the file and the formula."""

    def __init__(self, row):
        text = (INSTANCES / "pipedream" / f"{row['model']}.graph.txt").read_text()
        self.row, self.node, self.edges = row, {}, []
        for line in text.splitlines():
            if line.startswith("\t"):
                self.edges.append(tuple(line.strip().split(" -- ")))
            elif line.strip():
                figures = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[\d.e+]+)", line))
                self.node[line.split(" -- ")[0]] = figures
        self.counts = [count for count, _ in row["levels"]]

    def figure(self, name, key):
        text = self.node[name][key].strip("[]")
        return sum(float(part) for part in text.split(";"))

    def period(self, stages):
        """`stages`: (layer ids, first device, number of devices) in order; devices are taken one after the other."""
        return self.pipeline(stages, len(self.counts) - 1, set(), [layer for ids, _, _ in stages for layer in ids])

    def pipeline(self, stages, level, before, everything):
        width = self.row["levels"][level][1]
        below = 1
        for count in self.counts[:level]:
            below *= count
        outer = []
        for ids, first, count in stages:
            units = (first // below, (first + count - 1) // below)
            if outer and outer[-1][0] == units:
                outer[-1][1].append((ids, first, count))
            else:
                outer.append((units, [(ids, first, count)]))
        worst, before = 0.0, set(before)
        for number, ((low, high), inside) in enumerate(outer):
            m = high - low + 1
            layers = [layer for ids, _, _ in inside for layer in ids]
            if level:
                shares = [(ids, first, count // m) for ids, first, count in inside]
                inner = self.pipeline(shares, level - 1, before, everything)
            else:
                passes = ("forward_compute_time", "backward_compute_time")
                inner = sum(self.figure(n, key) for n in layers for key in passes) / 1e3
            weights = sum(self.figure(n, "parameter_size") for n in layers)
            sync = 4 * (m - 1) * weights / (width * m)
            if number == 0 and level:
                sync /= self.counts[level - 1]
            worst = max(worst, (inner + sync) / m)
            after = before | set(layers)
            if number and self.row["transfers"]:
                for made in (before, after):
                    worst = max(worst, 2 * self.crossing(made, everything) / (width * m))
            before = after
        return worst

    def crossing(self, made, everything):
        kept = set(everything)
        sent = {a for a, b in self.edges if a in made and b in kept and b not in made}
        return sum(self.figure(n, "activation_size") for n in sent)


def solved(row):
    cost = pipedream_instance(row)
    ideals = enumerate_ideals(cost.groups, 4000)
    value, stages = Levels(cost, ideals, replicate=not row["straight"]).best()
    return cost, ideals, value, stages


def named(row, parts):
    """(layer ids, first device, devices) of stages given as bitsets and device numbers."""
    text = (INSTANCES / "pipedream" / f"{row['model']}.graph.txt").read_text()
    names = pipedream_layers(text)
    return [
        ([n for g, n in enumerate(names) if layers >> g & 1], min(devices), len(devices)) for layers, devices in parts
    ]


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_published_values_come_out(row):
    cost, ideals, value, stages = solved(row)
    assert verdict(row, value) == "equal"
    assert period_s(cost, ideals, stages, len(cost.levels) - 1) == pytest.approx(value, rel=1e-12)
    parts = [(ideals[end] & ~ideals[start], tuple(sorted(d))) for start, end, d in placed_stages(cost, stages)]
    assert placed_period_s(cost, parts) == pytest.approx(value, rel=1e-12)
    assert Evaluator(row).period(named(row, parts)) == pytest.approx(value, rel=1e-9)
    assert sum(len(devices) for _, devices in parts) == math.prod(count for count, _ in row["levels"])


@pytest.mark.parametrize("row", [row for row in ROWS if row["cuts"]], ids=row_name)
def test_published_plans_are_optimal_too(row):
    """Where our plan is another one, theirs has the same price, by our model and by the evaluator."""
    cost, ideals, value, _ = solved(row)
    theirs = published_plan(cost, ideals, row)
    assert placed_period_s(cost, theirs) == pytest.approx(value, rel=1e-12)
    assert Evaluator(row).period(named(row, theirs)) == pytest.approx(value, rel=1e-9)


def test_plans_are_the_published_ones_except_for_ties():
    different = set()
    for row in ROWS:
        cost, _, _, stages = solved(row)
        found = [(end, len(devices)) for _, end, devices in placed_stages(cost, stages)]
        same_degrees = [degree for _, degree in found] == row["degrees"]
        if not same_degrees or row["cuts"] not in (None, [end for end, _ in found[:-1]]):
            different.add(row_name(row))
    assert different == {"vgg16-4@1-straight", "alexnet-4@1", "vgg16-4@10x4@1.25"}


def test_the_benchmark_says_so():
    rows = list(pipedream_rows())
    assert {row["verdict"] for row in rows} == {"equal"}
    assert [row["their_plan_s"] for row in rows if row["same_plan"] is False] == pytest.approx(
        [row["objective"] for row in rows if row["same_plan"] is False], rel=1e-12
    )
    assert verdict({"seconds": 0.25, "digits": ".3g"}, 0.2504) == "equal"
    assert verdict({"seconds": 0.25, "digits": ".3g"}, 0.2506) == "worse"
    assert verdict({"seconds": 0.25, "digits": ".3f"}, 0.2494) == "better"
    assert verdict({"seconds": 0.25, "digits": ".3f"}, None) == "worse"
    assert verdict({"seconds": None, "digits": ".3f"}, 0.1) == "better"


# Brute force on small graphs


def chain_groups(count, skips=()):
    """A chain of single-layer groups with extra edges."""
    edges = {(i, i + 1) for i in range(count - 1)} | set(skips)
    return groups_of(count, edges)


def groups_of(count, edges):
    return Groups(
        layers=tuple((i,) for i in range(count)),
        of_layer=tuple(range(count)),
        before=tuple(set_of(a for a, b in edges if b == i) for i in range(count)),
        after=tuple(set_of(b for a, b in edges if a == i) for i in range(count)),
    )


@st.composite
def costs(draw):
    count = draw(st.integers(1, 5))
    possible = list(itertools.combinations(range(count), 2))
    edges = set(draw(st.lists(st.sampled_from(possible), unique=True))) if possible else set()
    figure = st.integers(0, 9)
    sources = sorted({a for a, _ in edges})
    return PipeDreamCost(
        groups=groups_of(count, edges),
        work_s=draw(st.lists(figure, min_size=count, max_size=count)),
        weight_bytes=draw(st.lists(figure, min_size=count, max_size=count)),
        tensors=tuple(
            CrossingTensor(source=a, targets=set_of(b for x, b in edges if x == a), num_bytes=draw(figure))
            for a in sources
        ),
        levels=tuple(
            Level(count=draw(st.integers(1, 3)), bandwidth_bytes_per_s=draw(st.sampled_from([0.5, 1.0, 4.0])))
            for _ in range(draw(st.integers(1, 2)))
        ),
        activation_transfers=draw(st.booleans()),
    )


def brute_force(cost, level, low, high, first_units, use_all):
    """Least period of the part between two ideals on `first_units` units of a level, by plain recursion."""
    ideals = [i for i in range(high + 1) if cost.groups.is_ideal(i) and not low & ~i and not i & ~high]
    width = cost.levels[level].bandwidth_bytes_per_s

    def load(start, end, m, first):
        layers = [g for g in range(len(cost.groups)) if (end & ~start) >> g & 1]
        if level:
            inner = brute_force(cost, level - 1, start, end, cost.levels[level - 1].count, use_all)
        else:
            inner = sum(cost.work_s[g] for g in layers)
        sync = 4 * (m - 1) * sum(cost.weight_bytes[g] for g in layers) / (width * m)
        seconds = (inner + sync / (cost.levels[level - 1].count if level and first else 1)) / m
        if not first and cost.activation_transfers:
            for cut in (start, end):
                moved = sum(t.num_bytes for t in cost.tensors if cut >> t.source & 1 and t.targets & ~cut)
                seconds = max(seconds, 2 * moved / (width * m))
        return seconds

    def best(start, units, first):
        if start == high:
            return 0.0 if not units or not use_all else float("inf")
        return min(
            (
                max(load(start, end, m, first), best(end, units - m, False))
                for end in ideals
                if end != start and not start & ~end
                for m in range(1, units + 1)
            ),
            default=float("inf"),
        )

    return best(low, first_units, True)


@settings(max_examples=60)
@given(cost=costs(), use_all=st.booleans())
def test_the_tables_agree_with_brute_force(cost, use_all):
    levels = Levels(cost, enumerate_ideals(cost.groups, 100), use_all=use_all)
    top = len(cost.levels) - 1
    wanted = brute_force(cost, top, 0, cost.groups.everything, cost.levels[top].count, use_all)
    found = levels.best()
    if found is None:
        assert wanted == float("inf")
    else:
        assert found[0] == pytest.approx(wanted, rel=1e-12)
        assert period_s(cost, levels.ideals, found[1], top) == pytest.approx(wanted, rel=1e-12)
        parts = [(levels.ideals[e] & ~levels.ideals[s], tuple(sorted(d))) for s, e, d in placed_stages(cost, found[1])]
        assert placed_period_s(cost, parts) == pytest.approx(wanted, rel=1e-12)


def test_a_straight_pipeline_has_one_unit_per_stage():
    cost = PipeDreamCost(
        groups=chain_groups(4),
        work_s=[3, 1, 2, 2],
        weight_bytes=[0] * 4,
        tensors=(),
        levels=(Level(count=3, bandwidth_bytes_per_s=1.0),),
    )
    value, stages = Levels(cost, enumerate_ideals(cost.groups, 10), replicate=False).best()
    assert value == 3
    assert [(s.start, s.end, s.degree) for s in stages] == [(0, 1, 1), (1, 3, 1), (3, 4, 1)]
    short = PipeDreamCost(groups=chain_groups(2), work_s=[1, 1], weight_bytes=[0, 0], tensors=(), levels=cost.levels)
    assert Levels(short, enumerate_ideals(short.groups, 10), replicate=False).best() is None


# Hierarchies


def nodes(counts, inside=8e9, between=1e9):
    """Nodes of that many devices behind switches."""
    devices = tuple(Device(id=f"n{n}d{i}", type="unnamed") for n, count in enumerate(counts) for i in range(count))
    switched = [d.id for d in devices] if len(devices) > 1 else []
    links = [Link(a=name, b=f"s{name[1]}", bandwidth_bytes_per_s=inside) for name in switched]
    uplinks = [f"s{n}" for n in range(len(counts))] if len(counts) > 1 else []
    links += [Link(a=name, b="fabric", bandwidth_bytes_per_s=between) for name in uplinks]
    return Cluster(device_types=(DeviceType(name="unnamed", memory_bytes=2**40),), devices=devices, links=tuple(links))


def vgg(cluster, **fields):
    model = read_text((INSTANCES / "pipedream" / "vgg16.graph.txt").read_text())
    workload = Training(**{"global_batch_size": 32, "microbatch_size": 1} | fields)
    return Problem(graph=model.graph, profiles=model.profiles, cluster=cluster, workload=workload)


@pytest.mark.parametrize(
    ("counts", "between", "wanted"),
    [
        ([4, 4], 1e9, [(4, 8e9), (2, 1e9)]),
        ([2, 2, 2], 1e9, [(2, 8e9), (3, 1e9)]),
        ([3, 3], 8e9, [(6, 8e9)]),
        ([4], 1e9, [(4, 8e9)]),
        ([1], 1e9, [(1, float("inf"))]),
        ([4, 2], 1e9, None),
        ([2, 4], 1e9, None),
        ([3, 3, 2], 1e9, None),
    ],
)
def test_levels_of_clusters(counts, between, wanted):
    found = hierarchy(vgg(nodes(counts, between=between)))
    assert (found and [(level.count, level.bandwidth_bytes_per_s) for level in found]) == wanted


# In plan()

THROUGHPUT = {"objective": Objective.THROUGHPUT, "search_model": SearchModel.PIPEDREAM}
DEALT = THROUGHPUT | {"replica_mode": ReplicaMode.DEALT}


@pytest.mark.parametrize("counts", [[4], [4, 4], [2, 2, 2]])
def test_plan_in_the_model(counts):
    problem = vgg(nodes(counts, inside=10e9, between=1.25e9))
    result = plan(problem, SearchOptions(**DEALT))
    assert result.report.status is Status.OPTIMAL
    assert result.report.search_model == "pipedream"
    assert result.report.optimizer == "hierarchical_dp"
    assert result.report.bound_s == result.report.objective_s
    assert not verify(result.plan, problem)
    priced = CostModel(problem).price(result.plan)
    assert objective_s(problem, priced, Objective.THROUGHPUT, SearchModel.PIPEDREAM) == result.report.objective_s


def test_no_plan_is_better_in_the_model():
    """Every equal split of 4 devices over 2 to 4 stages costs at least as much as the plan found."""
    problem = vgg(nodes([4]))
    best = plan(problem, SearchOptions(**DEALT)).report.objective_s
    ids, names = [d.id for d in problem.cluster.devices], [layer.id for layer in problem.index.layers]
    for cut in range(1, len(names)):
        for first in range(1, 4):
            groups = [ids[:first], ids[first:]]
            stages = tuple(
                Stage(layers=tuple(layers), replicas=tuple((d,) for d in devices))
                for layers, devices in zip((names[:cut], names[cut:]), groups, strict=True)
            )
            split = Plan(
                stages=stages,
                schedule="1f1b",
                microbatch_size=1,
                num_microbatches=32,
                replica_mode=ReplicaMode.DEALT,
            )
            assert pipedream_period_s(problem, CostModel(problem).price(split)) >= best * (1 - 1e-12)


def test_doubling_all_seconds_doubles_the_objective():
    cost = pipedream_instance(next(row for row in ROWS if not row["transfers"]))
    twice = replace(cost, work_s=[2 * s for s in cost.work_s], weight_bytes=[2 * w for w in cost.weight_bytes])
    ideals = enumerate_ideals(cost.groups, 100)
    assert Levels(twice, ideals).best()[0] == pytest.approx(2 * Levels(cost, ideals).best()[0], rel=1e-12)


@pytest.mark.parametrize(
    ("cluster", "workload", "options", "reason"),
    [
        ([4], {}, THROUGHPUT, "use replica mode dealt"),
        ([4], {}, DEALT | {"objective": Objective.ITERATION_TIME}, "throughput in the pipedream search model only"),
        ([4], {}, DEALT | {"num_stages": 2}, "chooses the number of stages"),
        ([4], {}, DEALT | {"replication": Replication.EQUAL}, "chooses the number of stages"),
        ([4], {"tensor": 2}, DEALT, "the tensor degree is 2"),
        ([4, 2], {}, DEALT, "equal units of consecutive devices"),
    ],
)
def test_what_the_optimizer_refuses(cluster, workload, options, reason):
    problem = vgg(nodes(cluster), **workload)
    chosen = SearchOptions(**options)
    context = SearchContext(problem=problem, options=chosen, costs=CostModel(problem), clock=Clock(1.0))
    assert reason in OPTIMIZERS["hierarchical_dp"].supports(context)
    with pytest.raises(InputError, match="no optimizer searches this problem in the search model pipedream"):
        plan(problem, chosen)


def test_inference_is_refused():
    model = read_text((INSTANCES / "pipedream" / "alexnet.graph.txt").read_text())
    work = Inference(global_batch_size=8, microbatch_size=1)
    problem = Problem(graph=model.graph, profiles=model.profiles, cluster=nodes([2]), workload=work)
    with pytest.raises(InputError, match="prices training only"):
        plan(problem, SearchOptions(**DEALT))


def test_other_optimizers_do_not_search_the_model():
    with pytest.raises(InputError, match="'chain_dp' cannot search this problem: it searches closed"):
        plan(vgg(nodes([4])), SearchOptions(**DEALT, optimizer="chain_dp"))


def test_a_plan_that_is_not_nested_has_no_price():
    problem = vgg(nodes([2, 2]))
    ids, names = [d.id for d in problem.cluster.devices], tuple(layer.id for layer in problem.index.layers)
    uneven = Plan(
        stages=(
            Stage(layers=names[:20], replicas=tuple((d,) for d in ids[:3])),
            Stage(layers=names[20:], replicas=((ids[3],),)),
        ),
        schedule="1f1b",
        microbatch_size=1,
        num_microbatches=32,
        replica_mode=ReplicaMode.DEALT,
    )
    with pytest.raises(InputError, match="unequal numbers from the units of level 1"):
        pipedream_period_s(problem, CostModel(problem).price(uneven))


def test_a_best_plan_that_does_not_fit_is_named():
    small = nodes([4])
    tight = Cluster(
        device_types=(DeviceType(name="unnamed", memory_bytes=2**30),), devices=small.devices, links=small.links
    )
    report = plan(vgg(tight), SearchOptions(**DEALT)).report
    assert report.status in (Status.LIMIT, Status.INFEASIBLE)
    assert any("does not look at memory" in note and "bytes per device" in note for note in report.notes)


def test_a_search_ends_at_its_limits():
    cost = pipedream_instance(ROWS[0])
    ideals = enumerate_ideals(cost.groups, 100)
    with pytest.raises(LimitError, match="time limit"):
        Levels(cost, ideals, expired=lambda: True)
    wide = replace(
        cost, levels=(Level(count=2000, bandwidth_bytes_per_s=1e9), Level(count=9, bandwidth_bytes_per_s=1e9))
    )
    with pytest.raises(LimitError, match="41 ideals on 2000 x 9 units make"):
        Levels(wide, ideals)


def test_an_ended_search_is_reported():
    problem = vgg(nodes([4]))
    context = SearchContext(problem=problem, options=SearchOptions(**DEALT), costs=CostModel(problem), clock=Clock(0.0))
    outcome = OPTIMIZERS["hierarchical_dp"].search(context)
    assert (outcome.finished, outcome.exact, outcome.bound_s, outcome.candidates) == (False, False, None, ())
