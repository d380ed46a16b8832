"""The main function of a rank's process."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from planner.runtime.environment import die_with_parent, pin
from planner.runtime.job import Job, Seat
from planner.runtime.spec import ERROR, RESULT, STEP

RENDEZVOUS = "rendezvous"
MAX_ERROR_LENGTH = 2000


def main(handle: int, rank: int, parent: int, specification: str) -> None:
    """Run this rank and report through the pipe `handle`; the traceback of a failure goes to the log."""
    connection = Connection(handle)
    try:
        die_with_parent(parent)
        job: Job = pickle.loads(Path(specification).read_bytes())
        connection.send((RESULT, _run(job, rank, connection)))
    except BaseException as fault:
        traceback.print_exc(file=sys.stderr)
        connection.send((ERROR, (type(fault).__name__, _chain(fault)[:MAX_ERROR_LENGTH])))
        raise SystemExit(1) from None


def _run(job: Job, rank: int, connection: Connection) -> Any:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    core = pin(rank)
    import torch  # after pinning: the threads of torch and gloo then stay on the core
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(job.folder / RENDEZVOUS).as_uri(),
        rank=rank,
        world_size=job.num_ranks,
        timeout=timedelta(seconds=job.timeout_s),
    )

    def send_step(number: int, loss: float) -> None:
        connection.send((STEP, (number, loss)))

    result = job.work(Seat(rank=rank, core=core, num_cores=num_cores, send_step=send_step))
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
