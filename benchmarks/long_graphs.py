"""Seeded graphs that grow in one direction: long chains with side branches, and parallel chains with many ideals."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from benchmarks.devices import accelerators
from planner.checks import MAX_BYTES
from planner.graph import Edge, Layer, LayerGraph
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile
from planner.workload import Communication, Inference, Training

DEVICE = "accelerator"
BRANCH_EVERY = 10
"""One layer in ten stands on a side branch."""
BRANCH_SPAN = 4
"""A side branch leaves the chain and comes back so many layers later."""
SPREAD = 0.6
"""Of the lognormal work and tensors (proof.md, section 4)."""
MEAN_WORK_S = 1e-3
BANDWIDTH = 25e9
TRANSFER_SHARE = 0.05
"""Transfer seconds of a tensor, in units of a layer's work."""
NUM_MICROBATCHES = 256


def long_chain(num_layers: int) -> tuple[int, list[tuple[int, int]]]:
    """Layers and arcs of a chain in which every tenth layer is a side branch over four others.

    Branches do not overlap, so the number of ideals grows linearly with the layers.
    """
    side = set(range(BRANCH_EVERY // 2, num_layers - BRANCH_SPAN, BRANCH_EVERY))
    chain = [i for i in range(num_layers) if i not in side]
    arcs = list(itertools.pairwise(chain))
    for i in side:
        arcs += [(i - 1, i), (i, i + BRANCH_SPAN)]
    return num_layers, sorted(arcs)


def parallel_chains(length: int) -> tuple[int, list[tuple[int, int]]]:
    """Two chains of `length` layers that share nothing: (length + 1)^2 ideals."""
    return 2 * length, [(start + i, start + i + 1) for start in (0, length) for i in range(length - 1)]


def problem_of(
    shape: tuple[int, Iterable[tuple[int, int]]], devices: int, *, training: bool = False, seed: int = 0
) -> Problem:
    """Random work and tensors on a shape, on `devices` accelerators without memory limit, blocking transfers."""
    count, arcs = shape
    draw = random.Random(seed)
    work = [MEAN_WORK_S * draw.lognormvariate(0.0, SPREAD) for _ in range(count)]
    size = [round(TRANSFER_SHARE * MEAN_WORK_S * BANDWIDTH * draw.lognormvariate(0.0, SPREAD)) for _ in range(count)]
    return Problem(
        graph=LayerGraph(
            name=f"{count} layers, seed {seed}",
            layers=tuple(Layer(id=f"layer{i}") for i in range(count)),
            edges=tuple(Edge(source=f"layer{a}", target=f"layer{b}", bytes_per_sample=size[a]) for a, b in arcs),
        ),
        profiles=(_profile(work, training),),
        cluster=accelerators(DEVICE, devices, bandwidth_bytes_per_s=BANDWIDTH, memory_bytes=MAX_BYTES),
        workload=_workload(training),
    )


def _profile(work: list[float], training: bool) -> Profile:
    """A backward pass takes twice the forward pass."""
    costs = {f"layer{i}": LayerCost(forward_s=s, backward_s=2 * s * training) for i, s in enumerate(work)}
    return Profile(device_type=DEVICE, tables=(CostTable(microbatch_size=1, layers=costs),))


def _workload(training: bool) -> Training | Inference:
    kind = Training if training else Inference
    return kind(global_batch_size=NUM_MICROBATCHES, microbatch_size=1, communication=Communication.BLOCKING)
