"""What layers cost while the other core is busy: the costs of which predictions are made.

Two processes, each bound to a core, run the same thing at the same time: a plan whose stages are single layers, all on
one device, by the runtime's own executor. So every pass is timed as the code that runs plans runs it, and both cores
share the caches and the memory as they do in a run. Thread CPU time; medians over the steps of both processes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.truth.links import LinkTimes, time_links
from benchmarks.truth.passes import PassBytes
from planner.graph import LayerGraph
from planner.plan import Plan, Stage
from planner.profile import LayerCost
from planner.runtime.abilities import ExecutorKind, check_runnable
from planner.runtime.job import Seat
from planner.runtime.launch import Launcher
from planner.runtime.program import LOSS_LAYER, TracedProgram
from planner.runtime.running import shared_folder
from planner.runtime.spec import RunSpec, StepRecord
from profiles.tracing import TraceLoader

if TYPE_CHECKING:
    from planner.runtime.training import Trainer

WHOLE, SPLIT = 4, 1
"""Microbatches of a step with a whole and with a split backward pass."""
WARM_UP_STEPS, STEPS = 2, 12
OPTIMIZER_STEPS = 7
TIMEOUT_S = 200.0
DEVICE = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Thread CPU seconds of every layer's passes: per step by kind (F, B, I, W, loss), and of its optimizer steps."""

    passes: dict[str, dict[str, list[float]]]
    optimizer: dict[str, list[float]]


LayerBytes = dict[str, dict[str, PassBytes]]
"""Per layer and kind of pass: F, loss, B, I, W, and `B first`, which makes the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCosts:
    """What one of the two processes found."""

    graph: LayerGraph
    times: LayerTimes
    bytes: LayerBytes
    largest_parameter_bytes: dict[str, int]
    links: LinkTimes
    run_queue_share: float
    reference_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRun:
    """The job: both processes profile at once, then send each other messages."""

    loader: TraceLoader
    microbatch_size: int
    folder: Path
    timeout_s: float = TIMEOUT_S
    num_ranks: int = 2

    def name(self, rank: int) -> str:
        """For errors."""
        return f"copy {rank} of the profile"

    def work(self, seat: Seat) -> RankCosts:
        """Build the model once, time its layers, then the links."""
        import torch.distributed as dist

        from planner.runtime.gauge import Gauge
        from planner.runtime.training import build

        program = self.loader(self.microbatch_size)
        spec = self._spec(program)
        trainer = build(spec, replace(seat, rank=0), lambda batch_size: program)
        gauge, read, records = Gauge(), list[float](), list[StepRecord]()
        for number in range(WARM_UP_STEPS + STEPS):
            dist.barrier()
            read.append(gauge.read())
            records.append(trainer.step(number))
        records = records[WARM_UP_STEPS:]
        layers = [stage.layers[0] for stage in spec.plan.stages]
        run_queue_share = max((r.run_queue_s or 0.0) / (r.end_s - r.start_s) for r in records)
        return RankCosts(
            graph=program.graph,
            times=LayerTimes(passes=_passes(layers, records), optimizer=_one_at_a_time(seat, layers, trainer)),
            bytes=_bytes(layers, trainer),
            largest_parameter_bytes=_largest(layers, trainer),
            links=time_links(seat.rank),
            run_queue_share=run_queue_share,
            reference_s=statistics.median(read[WARM_UP_STEPS:]),
        )

    def _spec(self, program: TracedProgram) -> RunSpec:
        plan = layer_by_layer(program.graph, self.microbatch_size)
        return RunSpec(
            plan=plan,
            layout=check_runnable(plan),
            executor=ExecutorKind.OWN,
            loader=self.loader,
            num_steps=STEPS,
            check=False,
            seed=0,
            learning_rate=1e-5,
            timeout_s=self.timeout_s,
            folder=self.folder,
        )


def layer_by_layer(graph: LayerGraph, microbatch_size: int) -> Plan:
    """Every layer a stage, one microbatch after the other: forward through all, then back, the last ones split."""
    layers = [layer.id for layer in graph.layers if layer.id != LOSS_LAYER]
    groups: list[tuple[str, ...]] = [(layer,) for layer in layers]
    groups[-1] += (LOSS_LAYER,)
    numbers, back = range(len(layers)), range(len(layers) - 1, -1, -1)
    actions: list[str] = []
    for microbatch in range(WHOLE + SPLIT):
        kinds = "B" if microbatch < WHOLE else "IW"
        actions += [f"{stage}F{microbatch}" for stage in numbers]
        actions += [f"{stage}{kind}{microbatch}" for kind in kinds for stage in back]
    return Plan(
        stages=tuple(Stage(layers=group, replicas=((DEVICE,),)) for group in groups),
        schedule="custom",
        microbatch_size=microbatch_size,
        num_microbatches=WHOLE + SPLIT,
        actions=(tuple(actions),),
    )


def _passes(layers: Sequence[str], records: Sequence[StepRecord]) -> dict[str, dict[str, list[float]]]:
    """Per pass of one microbatch."""
    counts = {"F": WHOLE + SPLIT, "loss": WHOLE + SPLIT, "B": WHOLE, "I": SPLIT, "W": SPLIT}
    return {
        layer: {
            kind: [record.passes_s[f"{stage}{kind}"] / counts[kind] for record in records]
            for kind in counts
            if f"{stage}{kind}" in records[0].passes_s
        }
        for stage, layer in enumerate(layers)
    }


def _bytes(layers: Sequence[str], trainer: Trainer) -> LayerBytes:
    """Of one more step. The first whole backward pass makes the gradients, the second one adds to them."""
    from benchmarks.truth.bytes import BytesRecorder

    trainer.optimizer.zero_grad()
    recorder = BytesRecorder()
    trainer.recorder = trainer.executor.recorder = recorder  # type: ignore[attr-defined]
    trainer.step(0)
    labels = {"F": "F1", "loss": "loss", "B first": "B0", "B": "B1", "I": f"I{WHOLE}", "W": f"W{WHOLE}"}
    return {
        layer: {
            kind: recorder.bytes_of[f"{stage}{label}"]
            for kind, label in labels.items()
            if f"{stage}{label}" in recorder.bytes_of
        }
        for stage, layer in enumerate(layers)
    }


def _largest(layers: Sequence[str], trainer: Trainer) -> dict[str, int]:
    parts = zip(layers, trainer.parts.values(), strict=True)
    return {layer: max((p.numel() * p.element_size() for p in part.parameters()), default=0) for layer, part in parts}


def _one_at_a_time(seat: Seat, layers: Sequence[str], trainer: Trainer) -> dict[str, list[float]]:
    """The optimizer of the last rank to finish, which ends the iteration, runs while the others have nothing to do."""
    import torch.distributed as dist

    found: dict[str, list[float]] = {}
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == seat.rank:
            found = _optimizer(layers, trainer)
    dist.barrier()
    return found


def _optimizer(layers: Sequence[str], trainer: Trainer) -> dict[str, list[float]]:
    """AdamW of each layer alone, the others' state between two of its steps, so that caches are cold as in a run."""
    import torch

    data, target = trainer._batch(0)
    trainer.executor.passes(data, target)
    optimizers = {
        layer: torch.optim.AdamW([{"params": [p for p in part.parameters() if p.grad is not None]}], lr=1e-5)
        for layer, part in zip(layers, trainer.parts.values(), strict=True)
    }
    found: dict[str, list[float]] = {layer: [] for layer in layers}
    for turn in range(OPTIMIZER_STEPS):
        for layer, optimizer in optimizers.items():
            start = time.thread_time()
            optimizer.step()
            if turn:
                found[layer].append(time.thread_time() - start)
    return found


def profile(loader: TraceLoader, microbatch_size: int) -> tuple[RankCosts, RankCosts]:
    """Run the job on two cores."""
    with shared_folder() as folder:
        job = CoRun(loader=loader, microbatch_size=microbatch_size, folder=folder)
        with Launcher(job) as launcher:
            first, second = launcher.results(lambda done, loss: None)
    return first, second


def layer_costs(ranks: Iterable[RankCosts]) -> dict[str, LayerCost]:
    """Medians over the steps of all processes. The loss layer has the loss's forward; its backward is the head's."""
    ranks = list(ranks)
    times = ranks[0].times.passes

    def median(layer: str, kind: str) -> float:
        return statistics.median(s for rank in ranks for s in rank.times.passes[layer].get(kind, [0.0]))

    held = ranks[0].bytes
    costs = {
        layer: LayerCost(
            forward_s=median(layer, "F"),
            backward_s=median(layer, "B"),
            backward_input_s=median(layer, "I"),
            backward_weight_s=median(layer, "W"),
            optimizer_s=statistics.median(s for rank in ranks for s in rank.times.optimizer[layer]),
            activation_bytes=held[layer]["F"].net,
            workspace_bytes=max(held[layer]["F"].peak - held[layer]["F"].net, held[layer]["B"].peak),
            weight_pass_bytes=max(0, held[layer]["I"].net) if "I" in held[layer] else None,
        )
        for layer in times
    }
    last = list(times)[-1]
    costs[LOSS_LAYER] = LayerCost(
        forward_s=median(last, "loss"),
        activation_bytes=max(0, held[last]["loss"].net),
        workspace_bytes=held[last]["loss"].peak,
    )
    return costs
