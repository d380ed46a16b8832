"""Small problems and random plans for engines, and process groups in which one rank builds its part of a model."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from builders import AMPLE_BYTES, flat_cluster
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.exporters import EXPORTERS, ExportContext
from planner.graph import Edge, Layer, LayerGraph
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.schedules.placement import Placement, rank_at
from planner.targets import TARGETS
from planner.workload import Inference, Training

MODELS = range(10)
"""Seeds of random small models, each with random cuts."""


def problem_of(parameters: dict[str, int], devices: int, *, inference: bool = False) -> Problem:
    """A chain of layers with these numbers of parameters, one byte each."""
    names = list(parameters)
    costs = {name: LayerCost(forward_s=1.0, backward_s=2.0) for name in names}
    work = {"global_batch_size": 8 * devices}
    return Problem(
        graph=LayerGraph(
            layers=tuple(Layer(id=name, parameter_bytes=count) for name, count in parameters.items()),
            edges=tuple(Edge(source=a, target=b, bytes_per_sample=1) for a, b in pairwise(names)),
        ),
        profiles=(Profile(device_type="device", dtype="int8", tables=(CostTable(microbatch_size=1, layers=costs),)),),
        cluster=flat_cluster(devices, memory=AMPLE_BYTES),
        workload=Inference(**work) if inference else Training(**work),
    )


def random_plan(name: str, problem: Problem, rng: random.Random, *, virtual: int = 1, replicas: int = 1) -> Plan:
    """Cuts where the target allows them; the devices of the problem are the ranks."""
    size = len(problem.cluster.devices) // replicas
    starts = [p for p, may in enumerate(TARGETS[name].starts(problem.index)) if may and p]
    bounds = [0, *sorted(rng.sample(starts, size * virtual - 1)), len(problem.index)]
    ids, devices = [layer.id for layer in problem.index.layers], list(problem.devices)
    groups = [tuple((d,) for d in devices[at : at + replicas]) for at in range(0, len(devices), replicas)]
    return Plan(
        stages=tuple(
            Stage(layers=tuple(ids[a:b]), replicas=groups[rank_at(Placement.LOOP, number, size)])
            for number, (a, b) in enumerate(pairwise(bounds))
        ),
        schedule="interleaved_1f1b" if virtual > 1 else "1f1b",
        microbatch_size=replicas,
        num_microbatches=8 * len(devices) // replicas,
    )


def exported(name: str, problem: Problem, plan: Plan) -> str:
    return EXPORTERS[name].export(ExportContext(problem=problem, plan=plan))


def parameters_of(plan: Plan, problem: Problem, rank: int) -> list[int]:
    """Parameters of each stage on a rank."""
    size = {layer.id: layer.parameter_bytes for layer in problem.graph.layers}
    return [
        sum(size[name] for name in stage.layers)
        for stage, at in zip(plan.stages, plan.rank_of, strict=True)
        if at == rank
    ]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def rank_of_fake_group(rank: int, size: int) -> Iterator[None]:
    """A process group in which only this rank is real."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def own_warnings() -> Iterator[None]:
    """What engines warn of when they are imported and built is theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def engine(name: str) -> Any:
    """The engine's module, or the test is skipped."""
    with own_warnings():
        return pytest.importorskip(name)
