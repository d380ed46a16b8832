"""First-stage memory of published set-ups (Korthikanti et al. 2022, arXiv 2205.05198, figure 1), by hand.

Each value is the product's beside the hand calculation: parameters and optimizer at 18 bytes per parameter,
`12 h^2 L / (t p) * 18`; activations of the stage that holds the most, `held * s b h * (34 / t + 5 a s / (h t))`, where
the first rank of an interleaved schedule with v chunks holds L (1 + (p - 1) / (p v)) layers' activations, L at v = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest

from planner.costs.compute import layer_prices
from planner.costs.memory import kept_bytes_per_microbatch
from planner.costs.model import CostModel
from planner.costs.parts import StageParts, parts_of
from planner.costs.stage import StageSetting, stage_memory, stage_seconds
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.timeline import MemoryParts
from planner.workload import Recomputation, Training
from profiles.catalogue import device_type
from profiles.clusters import parse_short_form
from profiles.model import ModelRecord
from profiles.sources import build_problem, load_source

GIB = 2**30
FOLDER = Path(__file__).parents[1] / "instances" / "calculon"


@dataclass(frozen=True)
class SetUp:
    """A model and how it was run; `h`, `a`, `s`, `layers` are written out for the hand calculation."""

    model: str
    h: int
    a: int
    layers: int
    t: int
    p: int
    v: int
    b: int
    s: int = 2048

    @property
    def held(self) -> Fraction:
        """Layer activations on the first rank."""
        return self.layers * (1 + Fraction(self.p - 1, self.p * self.v) if self.v > 1 else 1)

    def kept(self, per_layer: float) -> float:
        """GiB of all held layers at `per_layer` bytes per token, sample and column."""
        return float(self.held) * self.s * self.b * self.h * per_layer / GIB

    @property
    def attention(self) -> float:
        """5 a s / h."""
        return 5 * self.a * self.s / self.h


SET_UPS = {
    "22B": SetUp(model="megatron-22B", h=6144, a=64, layers=48, t=8, p=1, v=1, b=4),
    "175B": SetUp(model="gpt3-175B", h=12288, a=96, layers=96, t=8, p=8, v=3, b=1),
    "530B": SetUp(model="turing-530B", h=20480, a=128, layers=105, t=8, p=35, v=3, b=1),
    "1T": SetUp(model="megatron-1T", h=25600, a=160, layers=128, t=8, p=64, v=1, b=1),
}


def problem_of(setup: SetUp, *, sequence_parallel: bool = True, nodes: int = 1) -> Problem:
    record = load_source(str(FOLDER / f"{setup.model}.json"))
    assert isinstance(record, ModelRecord)
    work = Training(
        global_batch_size=setup.b * 2 * setup.p,
        microbatch_size=setup.b,
        weight_bytes_per_parameter=2,
        gradient_bytes_per_parameter=4,
        optimizer_bytes_per_parameter=12,
        tensor=setup.t,
        sequence_parallel=sequence_parallel,
    )
    return build_problem(record, parse_short_form(f"{nodes}x8xA100-80G-SXM"), work)


def parts(problem: Problem, setup: SetUp, num_layers: int) -> StageParts:
    prices = layer_prices(problem, device_type("A100-80G-SXM").name, setup.b, setup.t)
    return parts_of(problem, prices, range(num_layers), setup.b)


def activations_gib(setup: SetUp, recomputation: Recomputation, *, sequence_parallel: bool = True) -> float:
    problem = problem_of(setup, sequence_parallel=sequence_parallel)
    one = kept_bytes_per_microbatch(parts(problem, setup, 1), problem.workload, recomputation, setup.t, 1)
    return float(setup.held * one / GIB)


@pytest.mark.parametrize(
    ("name", "gib"), [("22B", 45.5625), ("175B", 45.5625), ("530B", 31.640625), ("1T", 32.958984375)]
)
def test_parameters_and_optimizer(name: str, gib: float) -> None:
    setup = SET_UPS[name]
    by_hand = 12 * setup.h**2 * setup.layers / (setup.t * setup.p) * 18 / GIB
    assert by_hand == pytest.approx(gib, abs=1e-9)
    problem = problem_of(setup)
    setting = StageSetting(
        device_type="A100-80G-SXM",
        tensor=setup.t,
        replicas=1,
        sharers=1,
        zero=0,
        recomputation=Recomputation.NONE,
        group_route=None,
        replica_route=None,
    )
    memory = stage_memory(problem, parts(problem, setup, setup.layers // setup.p), setting, 1)
    state = memory["weights_bytes"] + memory["gradients_bytes"] + memory["optimizer_bytes"]
    assert state / GIB == pytest.approx(gib, abs=0.01)


def test_the_published_values_of_175b() -> None:
    """H12: 66.84375 GiB without recomputation and without sequence parallelism, 12.3515625 GiB with both."""
    setup = SET_UPS["175B"]
    assert setup.held == 124
    assert activations_gib(setup, Recomputation.NONE, sequence_parallel=False) == pytest.approx(66.84375, abs=1e-6)
    assert activations_gib(setup, Recomputation.SELECTIVE) == pytest.approx(12.3515625, abs=1e-6)


@pytest.mark.parametrize("name", SET_UPS)
def test_activations_of_the_first_stage(name: str) -> None:
    """The four ways to run a layer, table 2 of the paper."""
    setup = SET_UPS[name]
    rows = {
        (Recomputation.NONE, False): 10 + 24 / setup.t + setup.attention / setup.t,
        (Recomputation.NONE, True): 34 / setup.t + setup.attention / setup.t,
        (Recomputation.SELECTIVE, False): 10 + 24 / setup.t,
        (Recomputation.SELECTIVE, True): 34 / setup.t,
    }
    for (recomputation, sequence_parallel), per_layer in rows.items():
        found = activations_gib(setup, recomputation, sequence_parallel=sequence_parallel)
        assert found == pytest.approx(setup.kept(per_layer), abs=0.01), (recomputation, sequence_parallel)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_full_recomputation_keeps_the_inputs_of_layers(sequence_parallel: bool) -> None:
    """2 s b h per layer: the paper's figure, divided by t where sequence parallelism divides it."""
    setup = SET_UPS["22B"]
    problem = problem_of(setup, sequence_parallel=sequence_parallel)
    last = parts_of(problem, layer_prices(problem, "A100-80G-SXM", setup.b, setup.t), [5, 6], setup.b)
    kept = kept_bytes_per_microbatch(last, problem.workload, Recomputation.FULL, setup.t, 1)
    assert kept == 2 * 2 * setup.s * setup.b * setup.h // (setup.t if sequence_parallel else 1)


@pytest.mark.parametrize("name", SET_UPS)
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_more_recomputation_keeps_less_and_takes_longer(name: str, sequence_parallel: bool) -> None:
    setup = replace(SET_UPS[name], b=1)
    problem = problem_of(setup, sequence_parallel=sequence_parallel)
    sums = parts(problem, setup, 3)
    kept, seconds = [], []
    for recomputation in (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL):
        setting = StageSetting(
            device_type="A100-80G-SXM",
            tensor=setup.t,
            replicas=1,
            sharers=1,
            zero=0,
            recomputation=recomputation,
            group_route=None,
            replica_route=None,
        )
        kept.append(kept_bytes_per_microbatch(sums, problem.workload, recomputation, setup.t, 1))
        priced = stage_seconds(problem, sums, setting)
        seconds.append(priced.forward_s + priced.backward_s)
    assert kept[0] > kept[1] > kept[2]
    assert seconds[0] < seconds[1] < seconds[2]


def first_rank(setup: SetUp, recomputation: Recomputation, *, sequence_parallel: bool) -> tuple[Problem, MemoryParts]:
    """The memory of the plan's first device: p x v stages of equal layers, on p nodes of t = 8 devices."""
    problem = problem_of(setup, sequence_parallel=sequence_parallel, nodes=setup.p)
    names = [layer.id for layer in problem.index.layers]
    devices = [device.id for device in problem.cluster.devices]
    each = setup.layers // (setup.p * setup.v)
    plan = Plan(
        stages=tuple(
            Stage(
                layers=tuple(names[each * s : each * (s + 1)]),
                replicas=(tuple(devices[setup.t * (s % setup.p) : setup.t * (s % setup.p + 1)]),),
                tensor=setup.t,
                recomputation=recomputation,
            )
            for s in range(setup.p * setup.v)
        ),
        schedule="interleaved_1f1b" if setup.v > 1 else "1f1b",
        microbatch_size=setup.b,
        num_microbatches=2 * setup.p,
    )
    return problem, CostModel(problem).price(plan).stages[0].memory


@pytest.mark.parametrize("name", SET_UPS)
@pytest.mark.parametrize(
    ("recomputation", "sequence_parallel"), [(Recomputation.NONE, False), (Recomputation.SELECTIVE, True)]
)
def test_the_first_device_of_the_whole_plan(
    name: str, recomputation: Recomputation, *, sequence_parallel: bool
) -> None:
    """State and activations of the priced plan; figure 1 of the paper calls the set-ups that do not fit into 80 GiB."""
    setup = SET_UPS[name]
    _, memory = first_rank(setup, recomputation, sequence_parallel=sequence_parallel)
    per_layer = 34 / setup.t if sequence_parallel else 10 + 24 / setup.t + setup.attention / setup.t
    assert memory.activations_bytes / GIB == pytest.approx(setup.kept(per_layer), abs=0.01)
    state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert state / GIB == pytest.approx(12 * setup.h**2 * setup.layers / (setup.t * setup.p) * 18 / GIB, abs=0.01)
    assert (state + memory.activations_bytes < 80 * GIB) == sequence_parallel
