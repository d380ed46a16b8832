"""The runtime's parts without processes: shares, boundaries, holders, memory, merging."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from runnable_models import Loader
from torch import nn

from planner.errors import InputError
from planner.plan import Plan, Stage
from planner.runtime.abilities import ExecutorKind
from planner.runtime.data import share
from planner.runtime.environment import ALLOCATOR_VARIABLES, child_environment
from planner.runtime.gradients import holders
from planner.runtime.layout import layout_of
from planner.runtime.memory import peak_of, resident_bytes
from planner.runtime.merge import merge
from planner.runtime.program import RunnableModel
from planner.runtime.reference import Reference, compare, write_reference
from planner.runtime.relay import RelayStage, boundaries, relay_stages
from planner.runtime.spec import RankResult, RunSpec, StepRecord
from planner.workload import Recomputation

FLOAT_BYTES = 4


def test_each_replica_gets_its_part_of_every_microbatch() -> None:
    samples = torch.arange(8)
    assert share(samples, num_microbatches=2, replica=0, num_replicas=2).tolist() == [0, 1, 4, 5]
    assert share(samples, num_microbatches=2, replica=1, num_replicas=2).tolist() == [2, 3, 6, 7]
    assert share(samples, num_microbatches=2, replica=0, num_replicas=1).tolist() == list(range(8))


def skip_stages(recomputation: Recomputation = Recomputation.NONE) -> list[RelayStage]:
    """Three stages of the model whose last block reads the first one's output."""
    program = Loader("skip_model")(2)
    groups = (("blocks.0",), ("blocks.1", "blocks.2"), ("blocks.3", "loss"))
    stages = tuple(Stage(layers=group, replicas=(), recomputation=recomputation) for group in groups)
    return relay_stages(program, stages)


def test_a_skipping_tensor_crosses_every_boundary_on_its_way() -> None:
    stages = skip_stages()
    first, second = boundaries([stage.part for stage in stages])
    assert len(first) == 1
    assert len(second) == 2
    assert first[0] in second
    assert stages[2].part.model_inputs
    assert stages[1].received == first
    assert stages[1].sent == second


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((("blocks.1",), ("blocks.0", "blocks.2", "blocks.3")), "stage 0 reads tensor .* of stage 1: order the stages"),
        ((("blocks.0", "blocks.1", "blocks.3"), ("blocks.2",)), "stage 0 reads tensor .* of stage 1"),
    ],
)
def test_stages_in_another_order_are_refused(groups: tuple[tuple[str, ...], ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        relay_stages(Loader("skip_model")(2), [Stage(layers=group, replicas=()) for group in groups])


@pytest.mark.parametrize("recomputation", list(Recomputation))
def test_stages_in_a_row_compute_what_the_model_computes(recomputation: Recomputation) -> None:
    program = Loader("skip_model")(2)
    inputs, _ = program.runnable.make_batch(2, 0)
    names = [node.name for node in program.module.graph.nodes if node.op == "placeholder"]
    data = dict(zip(names, inputs, strict=True))
    passed: tuple[torch.Tensor, ...] = ()
    for stage in skip_stages(recomputation):
        own = {name: tensor for name, tensor in data.items() if name in stage.part.model_inputs}
        made = stage(*passed, **own)
        passed = made if isinstance(made, tuple) else (made,)
    torch.testing.assert_close(passed[0], program.runnable.model(*inputs))


class Patched(nn.Module):
    """Running statistics, and a `forward` that is replaced on the instance, as wrappers of large models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        inner = self.forward
        self.forward = lambda x: inner(x) * 2.0  # type: ignore[method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal: torch.Tensor = self.norm(x)
        return normal


def test_the_reference_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = Patched()
    batch = ((torch.arange(12.0).reshape(4, 3) ** 2,), torch.ones(4, 3))
    runnable = RunnableModel(name="patched", model=model, make_batch=lambda n, s: batch, loss=nn.functional.mse_loss)
    write_reference(runnable, batch, 2, tmp_path)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.norm.running_mean is not None
    assert model.norm.running_mean.tolist() == [0.0, 0.0, 0.0]
    for piece, target in zip(batch[0][0].chunk(2), batch[1].chunk(2), strict=True):
        (nn.functional.mse_loss(model(piece), target) / 2).backward()
    assert model.norm.weight.grad is not None
    assert model.norm.weight.grad.abs().min() > 1.0
    assert compare(model, tmp_path)[1] == {"norm.weight": 0.0, "norm.bias": 0.0}


def test_tied_parameters_are_held_by_several_stages() -> None:
    tied, first, frozen = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    frozen.requires_grad_(False)
    stages = [nn.Sequential(tied, first), nn.Sequential(frozen), nn.Sequential(tied)]
    assert holders(stages) == {id(tied.weight): (0, 2), id(first.weight): (0,)}


def test_peak_memory_counts_what_is_held_at_once() -> None:
    def work() -> None:
        first = torch.empty(1000)
        second = torch.empty(500)
        del first
        third = torch.empty(250)
        del second, third

    assert peak_of(work) == 1500 * FLOAT_BYTES


def test_resident_bytes_count_weights_and_adam_state_once() -> None:
    layer = nn.Linear(10, 10, bias=False)
    module = nn.Sequential(layer, layer)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(10)).sum().backward()
    optimizer.step()
    counter = FLOAT_BYTES
    held = [value for state in optimizer.state.values() for value in state.values()]
    assert resident_bytes(module, held) == 3 * 100 * FLOAT_BYTES + counter


def step(start_s: float, end_s: float, waited_s: float | None, loss: float | None, busy_s: float = 0.5) -> StepRecord:
    """A step in which the rank computed for so long."""
    return StepRecord(
        start_s=start_s,
        end_s=end_s,
        forward_s={0: 0.2, 1: 0.2},
        backward_s={0: 0.4, 1: 0.4},
        all_reduce_s=0.0,
        optimizer_s=0.1,
        busy_s=busy_s,
        process_s=busy_s,
        passes_s={"0F": 0.2, "1F": 0.2, "1B": 0.4},
        run_queue_s=waited_s,
        loss=loss,
        peak_in_flight=1,
        spans=(),
    )


def result(steps: list[StepRecord], peak: int, core: int | None = None) -> RankResult:
    """What a rank hands back."""
    return RankResult(
        steps=tuple(steps),
        peak_memory_bytes=peak,
        core=core,
        num_cores=2,
        gradient_differences={"w": peak * 1e-9},
        reference=Reference(2.0, 1.0),
        environment={"torch": "x"},
    )


def spec(num_steps: int) -> RunSpec:
    """Two stages on one device each, two microbatches."""
    devices = ((("a",),), (("b",),))
    stages = tuple(Stage(layers=(name,), replicas=group) for name, group in zip("pq", devices, strict=True))
    plan = Plan(stages=stages, schedule="1f1b", microbatch_size=1, num_microbatches=2)
    return RunSpec(
        plan=plan,
        layout=layout_of(plan),
        executor=ExecutorKind.TORCH,
        loader=Loader("skip_model"),
        num_steps=num_steps,
        check=True,
        seed=0,
        learning_rate=0.1,
        timeout_s=1.0,
        folder=Path("unused"),
    )


def test_a_report_takes_the_slowest_rank_and_the_clean_iterations() -> None:
    first = [step(0, 9, 0.0, None), step(0, 9, 0.0, None), step(0, 1, 0.0, None), step(0, 2, 0.0, None)]
    last = [step(0, 9, 0.0, 2.5), step(0, 9, 0.0, 2.0), step(0, 3, 0.9, 1.0), step(1, 3, 0.01, 0.5)]
    report = merge(spec(4), [result(first, 100, core=0), result(last, 300, core=1)])
    assert report.num_warm_up == 2
    assert report.losses == (2.5, 2.0, 1.0, 0.5)
    assert report.iteration_times_s == (3, 2)
    assert report.noise.run_queue_shares == pytest.approx((0.3, 0.005))
    assert (report.noise.num_clean, report.noise.pinned) == (1, True)
    assert report.iteration_time_s == 2
    assert report.loss_relative_difference == 0.25
    assert report.gradient_max_difference == pytest.approx(300e-9)
    assert [stage.peak_memory_bytes for stage in report.stages] == [100, 300]
    assert [stage.forward_s for stage in report.stages] == [0.1, 0.1]
    assert [stage.passes_s for stage in report.stages] == [{"F": 0.1}, {"B": 0.2, "F": 0.1}]
    assert report.timeline is not None
    assert report.timeline.makespan_s == 3


def test_an_iteration_that_took_more_cpu_time_than_others_is_not_clean() -> None:
    steps = [step(0, 9, 0.0, 1.0, busy_s) for busy_s in (9.0, 9.0, 1.0, 1.02, 1.03, 0.97, 1.0)]
    report = merge(spec(7), [result(steps, 1), result(steps, 1)])
    assert report.noise.cpu_deviations == pytest.approx((0.0, 0.02, 0.03, 0.03, 0.0))
    assert report.noise.num_clean == 3


def test_a_report_without_run_queue_figures_takes_all_iterations() -> None:
    steps = [step(0, 9, None, 1.0), step(0, 9, None, 1.0), step(0, 1, None, 1.0), step(0, 3, None, 1.0)]
    report = merge(spec(4), [result(steps, 1), result(steps, 1)])
    assert report.noise.run_queue_shares == ()
    assert report.iteration_time_s == 2
    assert not report.noise.pinned


def test_children_get_the_allocator_variables_and_our_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("somewhere")
    made = child_environment({"HOME": "h"})
    assert made.items() >= ({"HOME": "h"} | ALLOCATOR_VARIABLES).items()
    assert made["PYTHONPATH"].split(":")[0] == "somewhere"
