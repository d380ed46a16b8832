"""Our orders against PyTorch's own tables, for every schedule that it has and many sizes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from schedule_shapes import shape_of_ranks
from torch.distributed.pipelining import PipelineStage, schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.schedules import SCHEDULES

SIZES = (1, 2, 3, 4, 6)
TABLES = {
    "gpipe": (schedules.ScheduleGPipe, (1,)),
    "1f1b": (schedules.Schedule1F1B, (1,)),
    "interleaved_1f1b": (schedules.ScheduleInterleaved1F1B, (1, 2, 3)),
    "looped_bfs": (schedules.ScheduleLoopedBFS, (1, 2, 3)),
    "zb_h1": (schedules.ScheduleInterleavedZeroBubble, (1,)),
    "zb_v": (schedules.ScheduleZBVZeroBubble, (2,)),
    "dualpipe_v": (schedules.ScheduleDualPipeV, (2,)),
}
"""Our name: torch's class, and the virtual stages that are compared."""


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> Iterator[int]:
    """The pipeline size, in a process group of which the other members are not real."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    try:
        yield request.param
    finally:
        dist.destroy_process_group()


def stages_of(size: int, virtual: int, v_shaped: bool) -> list[PipelineStage]:
    """Rank 0's stages."""
    last = 2 * size - 1
    own = (0, last) if v_shaped else range(0, size * virtual, size)
    return [PipelineStage(torch.nn.Linear(1, 1), s, size * virtual, torch.device("cpu")) for s in own]


def theirs(name: str, size: int, virtual: int, microbatches: int) -> list[list[str]]:
    """Torch's table without idle steps and communication; a forward that overlaps a backward before it."""
    kind: Any = TABLES[name][0]
    stages = stages_of(size, virtual, v_shaped=name in ("zb_v", "dualpipe_v"))
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    table = kind(stages[0] if single else stages, microbatches)
    order = table._get_pipeline_order() if single else table.pipeline_order
    return [
        [str(part) for a in order[rank] if a is not None for part in a.sub_actions or (a,) if part.is_compute_op]
        for rank in range(size)
    ]


def legal(name: str, size: int, microbatches: int) -> bool:
    """Sizes that both have."""
    least = {"1f1b": size, "dualpipe_v": 2 * size}.get(name, 1)
    rounds = max(1, microbatches // size)
    even = {"interleaved_1f1b": size, "zb_h1": rounds}.get(name, 1)
    return microbatches >= least and microbatches % even == 0


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_order_is_torchs(name: str, size: int) -> None:
    """Torch 2.13 prints the last stage's 1F1B forwards from 1 on and runs them from 0 on: that stage is left out here,
    and compared by running it in test_runtime_runs."""
    compared = 0
    for virtual, microbatches in product(TABLES[name][1], (*range(1, 14), 24)):
        if not legal(name, size, microbatches):
            continue
        shape = shape_of_ranks(name, size, microbatches, virtual)
        SCHEDULES[name].check(shape)
        ours = [[str(a) for a in worker.actions] for worker in SCHEDULES[name].workers(shape)]
        table = theirs(name, size, virtual, microbatches)
        shown = size - 1 if name == "1f1b" else size
        assert ours[:shown] == table[:shown], (virtual, microbatches)
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_torch_lowers_every_order_to_one_that_it_can_run(name: str, tmp_path: Path) -> None:
    """`_PipelineScheduleRuntime` reads the rows, finds the placement, and adds the communication without a deadlock."""
    virtual = len(shape_of_ranks(name, 2, 4).ranks) // 2
    shape = shape_of_ranks(name, 2, 4, virtual)
    table = tmp_path / "order.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(worker.actions for worker in SCHEDULES[name].workers(shape))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        own = [s for s in range(shape.num_stages) if shape.ranks[s] == 0]
        stages = [PipelineStage(torch.nn.Linear(1, 1), s, shape.num_stages, torch.device("cpu")) for s in own]
        runtime = schedules._PipelineScheduleRuntime(stages, 4)
        runtime._load_csv(str(table), format="compute_only")
    finally:
        dist.destroy_process_group()
    assert runtime.stage_index_to_group_rank == dict(enumerate(shape.ranks))
    assert all(runtime.pipeline_order_with_comms[rank] for rank in range(2))
