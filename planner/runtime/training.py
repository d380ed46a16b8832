"""One rank's part of a run: build the stage, train, compare, measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from planner.grid import Grid
from planner.runtime.data import share_batch
from planner.runtime.environment import run_queue_delay_s
from planner.runtime.executors import Executor, PipelineExecutor, SingleStageExecutor
from planner.runtime.gradients import Bucket, buckets, reduce_gradients
from planner.runtime.memory import peak_of, resident_bytes
from planner.runtime.program import LossFunction, MakeBatch
from planner.runtime.recorder import ALL_REDUCE, OPTIMIZER, Recorder, record_step
from planner.runtime.reference import compare, write_reference
from planner.runtime.relay import RelayStage, relay_stages
from planner.runtime.spec import RankResult, RunSpec, StepRecord
from planner.runtime.split import model_input_names

SendStep = Callable[[int, float], None]


@dataclass(slots=True)
class Trainer:
    """What one rank needs for its steps; the rest of the model is gone."""

    spec: RunSpec
    replica: int
    make_batch: MakeBatch
    input_names: tuple[str, ...]
    stage: RelayStage
    executor: Executor
    shared: list[Bucket]
    optimizer: torch.optim.Optimizer
    recorder: Recorder

    def step(self, number: int, after_backward: Callable[[], None] | None = None) -> StepRecord:
        """Train on the batch of step `number`. The batch is made, and the others awaited, before the clock starts."""
        data, target = self._batch(number)
        dist.barrier()

        def work() -> float | None:
            loss = self.executor.passes(data, target)
            with self.recorder.note("all-reduce", ALL_REDUCE, ALL_REDUCE):
                reduce_gradients(self.shared, self.spec.grid.num_replicas)
            if after_backward is not None:
                after_backward()
            with self.recorder.note("optimizer", OPTIMIZER, OPTIMIZER):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            return loss

        return record_step(self.recorder, work, run_queue_delay_s)

    def _batch(self, number: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The replica's share of the inputs that its stage reads, and of the target."""
        spec = self.spec
        whole = self.make_batch(spec.global_batch_size, spec.seed + number)
        inputs, target = share_batch(whole, spec.plan.num_microbatches, self.replica, spec.grid.num_replicas)
        named = zip(self.input_names, inputs, strict=True)
        return {name: tensor for name, tensor in named if name in self.stage.part.model_inputs}, target


@dataclass(slots=True)
class Check:
    """The comparison after the backward pass of the first step; None until then."""

    stage: RelayStage
    folder: Path
    reference_loss: float | None = None
    differences: dict[str, float] | None = None

    def run(self) -> None:
        """Compare this rank's gradients with those of the reference file."""
        self.reference_loss, self.differences = compare(self.stage.part, self.folder)


def train(spec: RunSpec, rank: int, core: int | None, num_cores: int, send_step: SendStep) -> RankResult:
    """All steps of this rank, then one more under the memory profiler. The process group must be up."""
    trainer = build(spec, *divmod(rank, spec.grid.num_replicas))
    check = Check(trainer.stage, spec.folder)
    steps = []
    for number in range(spec.num_steps):
        record = trainer.step(number, check.run if spec.check and number == 0 else None)
        steps.append(record)
        if record.loss is not None and trainer.replica == 0:
            send_step(number + 1, record.loss)
    return RankResult(
        steps=tuple(steps),
        peak_memory_bytes=_peak_memory_bytes(trainer),
        core=core,
        num_cores=num_cores,
        gradient_differences=check.differences,
        reference_loss=check.reference_loss,
        environment={"torch": torch.__version__},
    )


def build(spec: RunSpec, stage_number: int, replica: int) -> Trainer:
    """Trace, split, keep the own stage. Collective: every rank makes the same groups in the same order.

    Rank 0 runs the unpartitioned model where a check is wanted; the others wait for its file in the first step.
    """
    program = spec.loader(spec.local_microbatch_size)
    runnable = program.runnable
    if spec.check and dist.get_rank() == 0:
        batch = runnable.make_batch(spec.global_batch_size, spec.seed)
        write_reference(runnable, batch, spec.plan.num_microbatches * spec.grid.num_replicas, spec.folder)
    stages = relay_stages(program, spec.plan.stages)
    stage, recorder = stages[stage_number], Recorder()
    shared = buckets(stages, stage_number, spec.grid)
    pipeline = _pipeline_group(spec.grid, replica)
    return Trainer(
        spec=spec,
        replica=replica,
        make_batch=runnable.make_batch,
        input_names=model_input_names(program),
        stage=stage,
        executor=_executor(spec, runnable.loss, stage, stage_number, pipeline, recorder),
        shared=shared,
        optimizer=_optimizer(stage, spec.learning_rate),
        recorder=recorder,
    )


def _executor(
    spec: RunSpec,
    loss: LossFunction,
    stage: RelayStage,
    number: int,
    pipeline: dist.ProcessGroup | None,
    recorder: Recorder,
) -> Executor:
    plan, num_stages = spec.plan, spec.grid.num_stages
    if num_stages == 1:
        return SingleStageExecutor(stage, plan.num_microbatches, loss, recorder)
    return PipelineExecutor(stage, number, num_stages, plan.num_microbatches, plan.schedule, loss, pipeline, recorder)


def _optimizer(stage: RelayStage, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; given as a group, they may be none (frozen stages)."""
    return torch.optim.AdamW([{"params": [p for p in stage.parameters() if p.requires_grad]}], lr=learning_rate)


def _pipeline_group(grid: Grid, replica: int) -> dist.ProcessGroup | None:
    """The ranks of one replica in stage order; None (all ranks) when there is one replica."""
    if grid.num_replicas == 1:
        return None
    columns = [[grid.rank(stage, column) for stage in range(grid.num_stages)] for column in range(grid.num_replicas)]
    groups: list[dist.ProcessGroup] = [dist.new_group(column) for column in columns]
    return groups[replica]


def _peak_memory_bytes(trainer: Trainer) -> int:
    """Peak of one more step on top of what stays; the step is not counted as one of the run."""
    number = trainer.spec.num_steps
    peak = peak_of(lambda: trainer.step(number))
    return peak + resident_bytes(trainer.stage, trainer.optimizer) + trainer.executor.received_bytes()
