"""One rank's part of a run: build the stage, train, compare, measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from planner.runtime.abilities import ExecutorKind
from planner.runtime.action_lists import ActionListExecutor
from planner.runtime.assembly import own_executor
from planner.runtime.checkpoint import entries_of, load_parts, read_index, save_part, write_index
from planner.runtime.data import share_batch
from planner.runtime.environment import run_queue_delay_s, stolen_s
from planner.runtime.executors import Executor, PipelineExecutor, SingleStageExecutor
from planner.runtime.gauge import Gauge
from planner.runtime.gradients import Bucket, buckets, reduce_gradients
from planner.runtime.job import Seat
from planner.runtime.layout import Layout
from planner.runtime.memory import peak_of, resident_bytes
from planner.runtime.program import ProgramLoader, TracedProgram
from planner.runtime.recorder import ALL_REDUCE, OPTIMIZER, Recorder, record_step
from planner.runtime.reference import Reference, compare, write_reference
from planner.runtime.relay import relay_stages
from planner.runtime.shards import Shards, shards_of, summed_apart, zero_levels
from planner.runtime.spec import RankResult, RunSpec, StepRecord, TurnsSpec
from planner.runtime.split import StageModule, model_input_names, split_layers
from planner.runtime.updates import Updates, set_precision


@dataclass(slots=True)
class Trainer:
    """What one rank needs for its steps; the rest of the model is gone.

    `parts` are the rank's stages by number, `module` holds them as they are run.
    """

    spec: RunSpec
    replica: int
    program: TracedProgram
    parts: dict[int, StageModule]
    module: nn.Module
    executor: Executor
    shared: list[Bucket]
    optimizer: Updates
    recorder: Recorder
    first_step: int
    core: int | None = None

    @property
    def is_spokesman(self) -> bool:
        """Whether this rank speaks for its stages: it saves them, and tells the loss."""
        return self.replica == 0

    def step(self, number: int, after_backward: Callable[[], None] | None = None) -> StepRecord:
        """Train on the batch of step `number`. The batch is made, and the others awaited, before the clock starts."""
        data, target = self._batch(self.first_step + number)
        divisor = self.spec.layout.num_replicas(0) if self.executor.gradients_are_means else 1
        dist.barrier()

        def work() -> float | None:
            loss = self.executor.passes(data, target)
            with self.recorder.note("all-reduce", ALL_REDUCE, ALL_REDUCE):
                reduce_gradients(self.shared, divisor)
                self.optimizer.settle()
            if after_backward is not None:
                after_backward()
            with self.recorder.note("optimizer", OPTIMIZER, OPTIMIZER):
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss

        return record_step(self.recorder, tuple(self.parts), work, self._waited_s)

    def _waited_s(self) -> float | None:
        """Seconds that this thread wanted to run and could not."""
        delay_s = run_queue_delay_s()
        return None if delay_s is None else delay_s + stolen_s(self.core)

    def save(self, folder: Path) -> None:
        """Every stage its part, then the index. Collective."""
        step = self.first_step + self.spec.num_steps
        for stage, part in self.parts.items():
            entries = entries_of(part, self.program.runnable.model, self.optimizer)
            if self.is_spokesman:
                save_part(folder, step, stage, entries)
        dist.barrier()
        if dist.get_rank() == 0:
            write_index(folder, step, self.spec.layout.num_stages)

    def _batch(self, number: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The inputs that the rank's stages read, and the target: of the whole batch, or the replica's share of it."""
        spec, make_batch = self.spec, self.program.runnable.make_batch
        batch = make_batch(spec.global_batch_size, spec.seed + number)
        if spec.executor is ExecutorKind.TORCH:
            batch = share_batch(batch, spec.plan.num_microbatches, self.replica, spec.layout.num_replicas(0))
        inputs, target = batch
        named = zip(model_input_names(self.program), inputs, strict=True)
        read = {name for part in self.parts.values() for name in part.model_inputs}
        return {name: tensor for name, tensor in named if name in read}, target


@dataclass(slots=True)
class Check:
    """The comparison after the backward pass of the first step; None until then."""

    parts: Sequence[StageModule]
    updates: Updates
    folder: Path
    reference: Reference | None = None
    differences: dict[str, float] | None = None

    def run(self) -> None:
        """Compare this rank's gradients with those of the reference file."""
        self.differences = {}
        for part in self.parts:
            self.reference, found = compare(part, self.folder, self.updates.gradient)
            self.differences |= found


def train(spec: RunSpec, seat: Seat) -> RankResult:
    """All steps of this rank, then one more under the memory profiler. The process group must be up."""
    trainer = build(spec, seat)
    check = Check(list(trainer.parts.values()), trainer.optimizer, spec.folder)
    steps = []
    for number in range(spec.num_steps):
        record = trainer.step(number, check.run if spec.check and number == 0 else None)
        steps.append(record)
        if record.loss is not None and trainer.is_spokesman:
            seat.send_step(number + 1, record.loss)
    if spec.save is not None:
        trainer.save(spec.save)
    return _result(trainer, steps, seat, check)


def train_in_turn(spec: TurnsSpec, seat: Seat) -> tuple[RankResult, ...]:
    """Every step of every plan of this rank, one step of each per round, then each once more for its memory."""
    programs: dict[int, TracedProgram] = {}

    def load(batch_size: int) -> TracedProgram:
        if batch_size not in programs:
            programs[batch_size] = spec.loader(batch_size)
        return programs[batch_size]

    trainers, gauge = [build(run, seat, load) for run in spec.runs], Gauge()
    steps: list[list[StepRecord]] = [[] for _ in trainers]
    for number in range(spec.runs[0].num_steps):
        for trainer, done in zip(trainers, steps, strict=True):
            dist.barrier()
            reference_s = gauge.read()
            done.append(replace(trainer.step(number), reference_s=reference_s))
    return tuple(_result(trainer, done, seat) for trainer, done in zip(trainers, steps, strict=True))


def _result(trainer: Trainer, steps: Sequence[StepRecord], seat: Seat, check: Check | None = None) -> RankResult:
    """Measures the memory of one more step."""
    return RankResult(
        steps=tuple(steps),
        peak_memory_bytes=_peak_memory_bytes(trainer),
        core=seat.core,
        num_cores=seat.num_cores,
        gradient_differences=None if check is None else check.differences,
        reference=None if check is None else check.reference,
        environment={"torch": torch.__version__},
    )


def build(
    spec: RunSpec,
    seat: Seat,
    load: ProgramLoader | None = None,
    *,
    recorder: Recorder | None = None,
    alone_on: str | None = None,
) -> Trainer:
    """Trace, split, keep the own stages. Collective: every rank makes the same groups in the same order.

    Rank 0 runs the unpartitioned model where a check is wanted; the others wait for its file in the first step. `load`
    is used instead of the run's own loader. With `alone_on`, a device, the process acts without the others
    (`planner.runtime.alone`): nothing is exchanged.
    """
    layout, rank = spec.layout, seat.rank
    own, (_, replica) = layout.stages_on(rank), layout.seat(rank)
    program = (load or spec.loader)(layout.local_size(own[0]))
    set_precision(program.runnable.model, spec.precision)
    parts = split_layers(program, [stage.layers for stage in spec.plan.stages])
    if spec.load is not None:
        load_parts(spec.load, [program.runnable.model], program.runnable.model, None)
    if spec.check and rank == 0:
        _write_reference(spec, program)
    recorder = recorder or Recorder()
    shards = shards_of(parts, spec.plan, layout, rank, alone=alone_on is not None)
    executor, stages = _executor(spec, program, parts, rank, recorder, shards)
    if alone_on is not None:
        executor = _lonely(executor, alone_on)
    apart = summed_apart(parts, zero_levels(parts, spec.plan, layout), layout)
    shared = buckets(stages, rank, layout, apart) if alone_on is None else []
    module = nn.ModuleList(stages[number] for number in own)
    optimizer = Updates(module.parameters(), spec.precision, spec.learning_rate, shards)
    if spec.load is not None:
        load_parts(spec.load, [parts[number] for number in own], program.runnable.model, optimizer)
    for shard in shards.all():
        shard.release()
    return Trainer(
        spec=spec,
        replica=replica,
        program=program,
        parts={number: parts[number] for number in own},
        module=module,
        executor=executor,
        shared=shared,
        optimizer=optimizer,
        recorder=recorder,
        first_step=0 if spec.load is None else read_index(spec.load).step,
        core=seat.core,
    )


def _lonely(executor: Executor, device: str) -> ActionListExecutor:
    """The executor with nobody at the other ends."""
    from planner.runtime.alone import LonelyMailbox

    assert isinstance(executor, ActionListExecutor)
    box = executor.mailbox
    executor.mailbox = LonelyMailbox(box.routes, box.rank, box.replica, box.examples, device=device)
    return executor


def _write_reference(spec: RunSpec, program: TracedProgram) -> None:
    """Of the first batch, in pieces as the replicas see them where all see equal ones."""
    layout, first = spec.layout, 0 if spec.load is None else read_index(spec.load).step
    batch = program.runnable.make_batch(spec.global_batch_size, spec.seed + first)
    pieces = spec.global_batch_size // layout.local_size(0) if layout.equal else spec.plan.num_microbatches
    write_reference(program.runnable, batch, pieces, spec.folder)


def _executor(
    spec: RunSpec, program: TracedProgram, parts: Sequence[StageModule], rank: int, recorder: Recorder, shards: Shards
) -> tuple[Executor, Sequence[nn.Module]]:
    """The executor, and all stages as it runs them. Collective."""
    plan, layout, loss = spec.plan, spec.layout, program.runnable.loss
    if spec.executor is ExecutorKind.OWN:
        return own_executor(program, parts, plan, layout, rank, recorder, shards), parts
    stages = relay_stages(program, plan.stages)
    number, replica = layout.seat(rank)
    pipeline = _pipeline_group(layout, replica)
    if layout.num_stages == 1:
        return SingleStageExecutor(stages[0], plan.num_microbatches, loss, recorder), stages
    return (
        PipelineExecutor(
            stages[number], number, layout.num_stages, plan.num_microbatches, plan.schedule, loss, pipeline, recorder
        ),
        stages,
    )


def _pipeline_group(layout: Layout, replica: int) -> dist.ProcessGroup | None:
    """The ranks of one replica in stage order; None (all ranks) when there is one replica."""
    num_replicas = layout.num_replicas(0)
    if num_replicas == 1:
        return None
    columns = [[layout.rank(s, column) for s in range(layout.num_stages)] for column in range(num_replicas)]
    groups: list[dist.ProcessGroup] = [dist.new_group(column) for column in columns]
    return groups[replica]


def _peak_memory_bytes(trainer: Trainer) -> int:
    """Peak of one more step on top of what stays; the step is not counted as one of the run."""
    number = trainer.spec.num_steps
    peak = peak_of(lambda: trainer.step(number))
    return peak + resident_bytes(trainer.module, trainer.optimizer.held()) + trainer.executor.received_bytes()
