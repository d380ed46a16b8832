"""The main function of a rank's process."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from planner.runtime.environment import die_with_parent, pin
from planner.runtime.spec import ERROR, RESULT, STEP, RankResult, RunSpec

RENDEZVOUS = "rendezvous"
MAX_ERROR_LENGTH = 2000


def main(handle: int, rank: int, parent: int, specification: str) -> None:
    """Run this rank and report through the pipe `handle`; the traceback of a failure goes to the log."""
    connection = Connection(handle)
    try:
        die_with_parent(parent)
        spec: RunSpec = pickle.loads(Path(specification).read_bytes())
        connection.send((RESULT, _run(spec, rank, connection)))
    except BaseException as fault:
        traceback.print_exc(file=sys.stderr)
        connection.send((ERROR, (type(fault).__name__, _chain(fault)[:MAX_ERROR_LENGTH])))
        raise SystemExit(1) from None


def _run(spec: RunSpec, rank: int, connection: Connection) -> RankResult:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    core = pin(rank)
    import torch  # after pinning: the threads of torch and gloo then stay on the core
    import torch.distributed as dist

    from planner.runtime.training import train

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(spec.folder / RENDEZVOUS).as_uri(),
        rank=rank,
        world_size=spec.layout.num_ranks,
        timeout=timedelta(seconds=spec.timeout_s),
    )
    result = train(spec, rank, core, num_cores, lambda number, loss: connection.send((STEP, (number, loss))))
    dist.barrier()
    dist.destroy_process_group()
    return result


def _chain(fault: BaseException) -> str:
    """The message of `fault` and of what caused it: torch wraps a stage's error in one that only lists shapes."""
    parts: list[str] = []
    here: BaseException | None = fault
    while here is not None and len(parts) < 4:
        parts.append(" ".join(str(here).split()))
        here = here.__cause__
    return "; because: ".join(parts)
