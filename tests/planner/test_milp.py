"""`milp`: names and units reach no solver, limits are kept, bounds are sound, nothing is left behind."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import assert_same_objective, chain_problem, chain_problems, context_of, dag_problems, search_options

from planner.cluster import Cluster, Device, DeviceKind, DeviceType, Link
from planner.costs.model import CostModel
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.optimizers._chain_space import device_classes
from planner.optimizers._milp_model import PartitionModel
from planner.optimizers._milp_prices import Setting, SettingPrices
from planner.optimizers.base import OPTIMIZERS, Candidate, Clock, Outcome, SearchContext, mixes_devices, refusal
from planner.optimizers.exhaustive import count_plans
from planner.optimizers.milp import TIME_IS_UP, Milp, _Search, choose_solver
from planner.options import SEARCHED_OBJECTIVES, Objective, Replication, SearchModel, SearchOptions
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.solvers import cbc, process
from planner.solvers.base import Answer, SolverStatus
from planner.solvers.cbc import Cbc
from planner.solvers.highs import Highs
from planner.verify import verify

EQUAL = SearchOptions(replication=Replication.EQUAL)
SOLVERS = ["cbc", "highs"]


def available(solver: str) -> Milp:
    """The optimizer with this solver; the test is skipped without it."""
    if choose_solver(solver) is None:
        pytest.skip(f"{solver} is not installed")
    return Milp(solver)


def model_of(context: SearchContext, num_stages: int) -> PartitionModel:
    """The model of one setting without replication."""
    size, count = context.batches()[0]
    setting = Setting(num_stages=num_stages, replicas=1, microbatch_size=size, num_microbatches=count, schedule="1f1b")
    (groups,) = device_classes(context.problem, 1)
    return PartitionModel([SettingPrices(context, setting, groups)], context.options.objective, context.search_model)


@pytest.fixture
def diamond() -> Problem:
    """Six layers with skips (case H15) on two devices: the best cut is after E."""
    seconds = {name: LayerCost(forward_s=4.0, backward_s=6.0) for name in "ABCDEF"}
    edges = [("A", "B", 10), ("B", "C", 10), ("C", "D", 30), ("D", "E", 10), ("E", "F", 10), ("A", "E", 40)]
    return Problem(
        graph=LayerGraph(
            layers=tuple(Layer(id=name, parameter_bytes=4) for name in "ABCDEF"),
            edges=tuple(
                Edge(source=a, target=b, tensor=f"{a}{b}", bytes_per_sample=size)
                for a, b, size in [*edges, ("B", "D", 20)]
            ),
        ),
        profiles=(Profile(device_type="gpu", tables=(CostTable(microbatch_size=1, layers=seconds),)),),
        cluster=Cluster(
            device_types=(DeviceType(name="gpu", memory_bytes=2**30),),
            devices=(Device(id="d0", type="gpu"), Device(id="d1", type="gpu")),
            links=(Link(a="d0", b="d1", bandwidth_bytes_per_s=4.0),),
        ),
        workload=chain_problem([(1, 2)], devices=1, num_microbatches=2).workload,
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_tensor_alive_across_the_cut_is_sent(diamond: Problem, solver: str) -> None:
    options = replace(EQUAL, search_model=SearchModel.CLOSED, num_stages=2)
    outcome = available(solver).search(context_of(diamond, options))
    assert outcome.exact
    assert [len(stage.layers) for stage in outcome.candidates[0].plan.stages] == [5, 1]
    assert outcome.candidates[0].objective_s == pytest.approx(115.0, rel=1e-9)
    assert outcome.solver.lower().startswith(solver)


@pytest.mark.parametrize("solver", SOLVERS)
def test_names_and_units_reach_no_solver(solver: str) -> None:
    milp = available(solver)
    odd = ['in"f', "free", "é:\\", "x" * 300, "block 1", "block-1"]
    base = chain_problem(
        [(1.0, 2.0), (2.0, 4.0), (1.0, 2.0), (3.0, 6.0), (1.0, 2.0), (1.0, 2.0)],
        devices=3,
        num_microbatches=4,
        parameter_bytes=[8_000_000_000, 4, 8, 40_000_000_004, 4, 4],
        output_bytes=[10_000_000_000] * 6,
        memory_bytes=400 * 2**30,
        bandwidth=1e11,
    )
    new = dict(zip([layer.id for layer in base.graph.layers], odd, strict=True))
    tiny = Problem(
        graph=LayerGraph(
            layers=tuple(replace(layer, id=new[layer.id]) for layer in base.graph.layers),
            edges=tuple(replace(e, source=new[e.source], target=new[e.target]) for e in base.graph.edges),
        ),
        profiles=(
            Profile(
                device_type="gpu",
                tables=(
                    CostTable(
                        microbatch_size=1,
                        layers={
                            new[name]: replace(c, forward_s=1e-6 * c.forward_s, backward_s=1e-6 * c.backward_s)
                            for name, c in base.profiles[0].tables[0].layers.items()
                        },
                    ),
                ),
            ),
        ),
        cluster=replace(
            base.cluster, links=tuple(replace(link, bandwidth_bytes_per_s=1e17) for link in base.cluster.links)
        ),
        workload=base.workload,
    )
    first, second = milp.search(context_of(base, EQUAL)), milp.search(context_of(tiny, EQUAL))
    assert first.exact
    assert second.exact
    assert second.candidates[0].objective_s == pytest.approx(1e-6 * first.candidates[0].objective_s, rel=1e-9)
    assert_same_objective(first, OPTIMIZERS["exhaustive"].search(context_of(base, EQUAL)))


def test_the_model_file_holds_generated_names_only(diamond: Problem, tmp_path: Path) -> None:
    model = model_of(context_of(diamond, EQUAL), 2)
    model.lp.writeMPS(str(tmp_path / "model.mps"))
    text = (tmp_path / "model.mps").read_text()
    columns = text[text.index("COLUMNS") : text.index("RHS")].split()
    assert {word[0] for word in columns if not word[0].isdigit() and word[0] != "-"} <= set("CMx'_IO")
    assert all(name.startswith("x") for name in (v.name for v in model.lp.variables()))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problem=dag_problems(most_layers=5), options=search_options(replications=(Replication.EQUAL,)))
def test_incumbents_are_kept_and_cut_off_the_rest(problem: Problem, options: SearchOptions) -> None:
    milp = Milp()
    context = context_of(problem, options)
    assume(refusal(milp, context) == "")
    alone = milp.search(context)
    assume(alone.candidates)
    again = milp.search(replace(context, incumbents=alone.candidates))
    assert again.exact
    assert_same_objective(alone, again)
    assert again.bound_s is not None
    assert again.bound_s <= again.candidates[0].objective_s


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    problem=chain_problems(most_layers=5, most_samples=4),
    options=search_options(replications=(Replication.EQUAL, Replication.NONE)),
    cpu=st.booleans(),
)
def test_stages_choose_between_types_of_devices(problem: Problem, options: SearchOptions, cpu: bool) -> None:
    """With latency, memory and replicas; `old` devices may be CPUs, which pay no transfers in `blocking`."""
    kinds = problem.cluster.device_types
    assume(len(kinds) > 1)
    if cpu:
        kinds = tuple(replace(kind, kind=DeviceKind.CPU) if kind.name == "old" else kind for kind in kinds)
        problem = replace(problem, cluster=replace(problem.cluster, device_types=kinds))
    context, milp = context_of(problem, options), Milp()
    assume(refusal(milp, context) == "")
    assume(count_plans(context) <= 2_000)
    oracle, found = OPTIMIZERS["exhaustive"].search(context), milp.search(context)
    assert_same_objective(found, oracle)
    assert found.exact is oracle.exact is not mixes_devices(context)
    assert all(not verify(candidate.plan, problem, context.costs) for candidate in found.candidates)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_warm_start_is_accepted(diamond: Problem, solver: str) -> None:
    available(solver)
    model = model_of(context_of(diamond, EQUAL), 2)
    start = model.partition.start([0, 0, 0, 0, 0, 1], [0, 0])
    chosen = choose_solver(solver)
    assert chosen is not None
    answer = chosen.solve(model.lp, limit_s=30.0, seed=0, start=start)
    assert answer.status is SolverStatus.OPTIMAL
    assert answer.bound is not None
    assert sorted(model.partition.stage_of(answer.values)) == model.partition.stage_of(answer.values)


def test_an_infeasible_memory_limit_is_proven(diamond: Problem) -> None:
    tight = replace(diamond, cluster=replace(diamond.cluster, device_types=(DeviceType(name="gpu", memory_bytes=8),)))
    outcome = Milp().search(context_of(tight, EQUAL))
    assert outcome.candidates == ()
    assert outcome.exact
    assert outcome.bound_s is None


def test_no_bound_is_claimed_when_unequal_degrees_were_asked_for() -> None:
    problem = chain_problem([(1.0, 2.0)] * 4, devices=4, num_microbatches=2, microbatch_size=2)
    outcome = Milp().search(context_of(problem, SearchOptions()))
    assert outcome.candidates
    assert outcome.bound_s is None
    assert not outcome.exact
    assert any("equal replication degrees" in note for note in outcome.notes)


def test_no_time_no_claim(diamond: Problem) -> None:
    context = SearchContext(problem=diamond, options=EQUAL, costs=CostModel(diamond), clock=Clock(0.0))
    outcome = Milp().search(context)
    assert not outcome.exact
    assert not outcome.finished
    assert outcome.candidates == ()


class StoppedClock(Clock):
    """A clock that the test moves."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.seconds = limit_s

    def left_s(self) -> float:
        return max(0.0, self.seconds)


class Sleeper(Highs):
    """Uses up every limit and finds nothing; calls 2 and 3 say at once that there is nothing if told to be quick."""

    def __init__(self, clock: StoppedClock, quick: bool) -> None:
        self.clock, self.quick = clock, quick
        self.limits: list[float] = []

    def solve(self, model: Any, *, limit_s: float, seed: int, start: Mapping[str, float]) -> Answer:
        self.limits.append(limit_s)
        if self.quick and len(self.limits) in (2, 3):
            return Answer(status=SolverStatus.INFEASIBLE, values={}, bound=None)
        self.clock.seconds -= limit_s
        return Answer(status=SolverStatus.LIMIT, values={}, bound=None)


def slept(problem: Problem, incumbents: tuple[Candidate, ...] = (), quick: bool = False) -> tuple[Outcome, list[float]]:
    """A search of 64 s with a solver that only sleeps, and the limits that it was given."""
    clock = StoppedClock(64.0)
    context = SearchContext(
        problem=problem, options=EQUAL, costs=CostModel(problem), clock=clock, incumbents=incumbents
    )
    solver = Sleeper(clock, quick)
    search = _Search(context, solver)
    search.run()
    return search.outcome(), solver.limits


def uneven_chain() -> Problem:
    """Settings of 1 to 4 stages, whose bounds are 208, 130, 104 and 91 s; the best plan takes 121 s."""
    seconds = [(1.0 + (7 * i) % 5, 2.0 + (3 * i) % 4) for i in range(8)]
    problem: Problem = chain_problem(seconds, devices=4, num_microbatches=4, output_bytes=[64] * 8, bandwidth=16.0)
    return problem


def test_all_of_the_time_is_shared_before_the_limit_is_called_reached() -> None:
    outcome, limits = slept(uneven_chain())
    assert limits == pytest.approx([64 / 3] * 3)
    assert not outcome.finished
    assert TIME_IS_UP in outcome.notes


def test_settings_that_a_bound_excludes_take_no_share_of_the_time() -> None:
    best = Milp().search(context_of(uneven_chain(), EQUAL)).candidates[:1]
    outcome, limits = slept(uneven_chain(), best)
    assert limits == pytest.approx([32.0, 32.0])
    assert outcome.bound_s == pytest.approx(91.0)


def test_time_that_is_left_over_goes_to_the_settings_that_need_it() -> None:
    outcome, limits = slept(uneven_chain(), quick=True)
    assert len(limits) == 4
    assert [limits[0], limits[-1]] == pytest.approx([64 / 3, 128 / 3])
    assert not outcome.finished


def test_unequal_links_are_refused(diamond: Problem) -> None:
    third = replace(
        diamond.cluster,
        devices=(*diamond.cluster.devices, Device(id="d2", type="gpu")),
        links=(*diamond.cluster.links, Link(a="d1", b="d2", bandwidth_bytes_per_s=8.0)),
    )
    assert "links" in Milp().supports(context_of(replace(diamond, cluster=third), EQUAL))
    tied = replace(diamond.graph, tied=(TiedParameters(layers=("A", "B", "C"), parameter_bytes=4),))
    assert "share" in Milp().supports(context_of(replace(diamond, graph=tied), EQUAL))


@pytest.mark.parametrize(
    "answers", ["", "Optimal - objective value 3.0\n", "Optimal - objective value 3.0\n 0 x0 1 0\n"]
)
def test_cut_off_solution_files_are_no_solutions(answers: str) -> None:
    answer = cbc._cbc_answer(answers, "", ["x0", "x1"])
    assert answer.status is SolverStatus.FAILED
    assert answer.values == {}


def test_a_stopped_cbc_is_not_optimal() -> None:
    log = "After 5 nodes, 4 on tree, 18.5 best solution, best possible 16.26156 (0.23 seconds)\nLower bound: 16.262\n"
    body = "      0 x0  1  0\n** 1 x1 0.5 0\n"
    stopped = cbc._cbc_answer(f"Stopped on time - objective value 18.5\n{body}", log, ["x0", "x1"])
    assert stopped.status is SolverStatus.FEASIBLE
    assert stopped.bound is not None
    assert 16.261 < stopped.bound < 16.26156
    relaxed = cbc._cbc_answer(f"Stopped on time (no integer solution - continuous used)\n{body}", log, ["x0"])
    assert relaxed.status is SolverStatus.LIMIT
    assert relaxed.values == {}
    assert cbc._cbc_answer("Infeasible - objective value 1\n", log, ["x0"]).status is SolverStatus.INFEASIBLE


def test_a_solver_that_hangs_is_killed_with_its_children(
    diamond: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in that ignores its limit and interrupts, and starts a child of its own."""
    pids = tmp_path / "pids"
    script = tmp_path / "cbc"
    script.write_text(f"#!/bin/sh\ntrap '' INT\nsleep 600 &\necho $$ $! > {pids}\nwait\nwait\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(process, "GRACE_S", 2.0)
    monkeypatch.setattr(process, "INTERRUPT_S", 0.2)
    answer = Cbc(str(script)).solve(model_of(context_of(diamond, EQUAL), 2).lp, limit_s=0.05, seed=0, start={})
    assert answer.status is SolverStatus.FAILED
    for pid in map(int, pids.read_text().split()):
        assert _ended(pid)


def test_ctrl_c_leaves_no_solver_behind(diamond: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cbc"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    started: list[int] = []
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        started.append(process.pid)
        if len(started) == 1:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Cbc(str(script)).solve(model_of(context_of(diamond, EQUAL), 2).lp, limit_s=60.0, seed=0, start={})
    assert _ended(started[0])


def _ended(pid: int) -> bool:
    """No such process, or only its entry is left for init to collect."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_options_of_cbc_are_numbers() -> None:
    assert cbc._cbc_arguments(1.5, -1, True).count("-sec") == 1
    words = [a for a in cbc._cbc_arguments(1.5, -1, True) if not a.startswith("-")]
    assert all(w in ("model.mps", "start.mst", "solution.txt", "elapsed", "all") or float(w) >= 0 for w in words)


def test_nothing_is_printed(diamond: Problem, capfd: pytest.CaptureFixture[str]) -> None:
    for solver in (Highs(), Cbc()):
        if solver.available():
            Milp(solver.name).search(context_of(diamond, EQUAL))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("objective", SEARCHED_OBJECTIVES)
def test_a_chain_of_thirty_layers_matches_the_dp(solver: str, objective: Objective) -> None:
    problem = chain_problem(
        [(1.0 + (7 * i) % 5, 2.0 + (3 * i) % 4) for i in range(30)],
        devices=4,
        num_microbatches=8,
        parameter_bytes=[4 * (i % 6 + 1) for i in range(30)],
        output_bytes=[4 * (i % 3 + 1) for i in range(30)],
        bandwidth=64.0,
    )
    options = SearchOptions(replication=Replication.NONE, objective=objective)
    milp, dp = available(solver), OPTIMIZERS["chain_dp"]
    known = dp.search(context_of(problem, options))
    found = milp.search(context_of(problem, options))
    assert known.exact
    assert found.exact
    assert_same_objective(known, found)
