"""Builds the executor of one process: through torch's schedules, or the action lists of our own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from planner.errors import RunError
from planner.plan import Plan
from planner.runtime.action_lists import ActionListExecutor, actions_of
from planner.runtime.layered import computations
from planner.runtime.layout import Layout
from planner.runtime.mailbox import Mailbox
from planner.runtime.program import TracedProgram
from planner.runtime.recorder import Recorder
from planner.runtime.relay import check_order
from planner.runtime.routes import routes_of
from planner.runtime.shards import Shards
from planner.runtime.split import StageModule, output_name
from planner.runtime.stage_passes import StagePasses


def own_executor(
    program: TracedProgram,
    parts: Sequence[StageModule],
    plan: Plan,
    layout: Layout,
    rank: int,
    recorder: Recorder,
    shards: Shards,
) -> ActionListExecutor:
    """The executor of process `rank`. `parts` are all stages of `program`, traced at this process's local size.

    RunError for a tensor between stages of different replication whose first dimension does not hold the samples.
    """
    check_order(parts)
    _, replica = layout.seat(rank)
    routes = routes_of(layout, [part.output_names for part in parts], [part.input_names for part in parts])
    examples = _examples(program)
    if not layout.equal:
        _check_samples_first(examples, {way.name: way.source for way in routes.ways}, program.batch_size)
    differentiated = with_gradient(parts, examples)
    work = computations(program, plan.stages, parts, shards)
    made, received = output_name(program), frozenset(way.name for way in routes.ways)
    stages = {
        number: StagePasses(
            part=parts[number],
            compute=work[number],
            received=received,
            with_gradient=differentiated,
            output=made if made in parts[number].output_names else None,
            loss=program.runnable.loss,
            shards=shards.among(parts[number].parameters()),
        )
        for number in layout.stages_on(rank)
    }
    return ActionListExecutor(
        actions=actions_of(plan, layout, rank),
        stages=stages,
        routes=routes,
        replica=replica,
        with_gradient=differentiated & received,
        mailbox=Mailbox(routes, rank, replica, examples),
        recorder=recorder,
    )


def with_gradient(parts: Sequence[StageModule], examples: dict[str, torch.Tensor]) -> frozenset[str]:
    """Tensors that stages make and that need a gradient: floating-point, behind a trainable parameter.

    Stages before the first trainable parameter run no backward pass, and nothing is sent back to them.
    """
    found: set[str] = set()
    for part in parts:
        trained = any(parameter.requires_grad for parameter in part.parameters())
        if trained or found.intersection(part.input_names):
            found.update(name for name in part.output_names if examples[name].is_floating_point())
    return frozenset(found)


def _examples(program: TracedProgram) -> dict[str, torch.Tensor]:
    """Per tensor of the trace one without data, of its shape and type."""
    values = {node.name: node.meta.get("val") for node in program.module.graph.nodes}
    return {
        name: torch.empty(value.shape, dtype=value.dtype, device="meta")
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def _check_samples_first(examples: dict[str, torch.Tensor], makers: dict[str, int], batch_size: int) -> None:
    for name, stage in makers.items():
        shape = tuple(examples[name].shape)
        if not shape or shape[0] % batch_size:
            raise RunError(
                f"stage {stage} makes tensor {name!r} of shape {shape}, whose first dimension does not hold the "
                f"{batch_size} samples: its readers have other samples; give both stages the same replicas"
            )
