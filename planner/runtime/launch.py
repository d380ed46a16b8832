"""Starts one process per rank, listens to them, and ends all of them whatever happens."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from planner.errors import ExportError, InputError, PlannerError, RunError
from planner.runtime.environment import child_environment
from planner.runtime.job import Job
from planner.runtime.spec import ERROR, RESULT, STEP

WORKER = "import sys; from planner.runtime.worker import main; main(*map(int, sys.argv[2:]), sys.argv[1])"
GRACE_S = 1.0
"""After the first failure the other ranks get this long to speak: the first to be heard may be a consequence."""
CONSEQUENCES = ("closed by peer", "connection reset", "broken pipe", "gloo/transport")
"""Words of errors that a rank reports because another rank is gone."""
CALLERS_FAULTS: dict[str, type[PlannerError]] = {"InputError": InputError, "ExportError": ExportError}
"""Errors of a rank that are raised here as what they are; all others are failed runs."""
MAX_LINES_SHOWN = 12

OnStep = Callable[[int, float], None]


@dataclass(slots=True)
class Rank:
    """One child process: its pipe, its log file, and what came of it."""

    number: int
    name: str
    process: subprocess.Popen[bytes]
    connection: Connection
    log: Path
    result: Any = None
    failure: str = ""
    fault: type[PlannerError] = RunError


@dataclass(slots=True)
class Launcher:
    """The processes of one job: a context manager that leaves none of them behind."""

    job: Job
    ranks: list[Rank] = field(default_factory=list)

    def __enter__(self) -> Launcher:
        specification = self.job.folder / "spec.pickle"
        specification.write_bytes(_pickled(self.job))
        try:
            for number in range(self.job.num_ranks):
                self.ranks.append(_start(self.job, specification, number))
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._kill()

    def results(self, on_step: OnStep) -> list[Any]:
        """Listen until every rank has handed in its result; RunError when one fails or the time is over."""
        deadline = time.monotonic() + self.job.timeout_s
        while waiting := [rank for rank in self.ranks if rank.result is None]:
            if not self._listen(waiting, deadline - time.monotonic(), on_step):
                raise RunError(_late(waiting, self.job.timeout_s))
            if any(rank.failure for rank in waiting):
                self._hear_the_others(waiting)
                raise _cause(waiting)
        return [rank.result for rank in self.ranks if rank.result is not None]

    def _listen(self, waiting: list[Rank], timeout_s: float, on_step: OnStep) -> bool:
        """Read what has arrived; False when nothing came in time."""
        by_connection = {rank.connection: rank for rank in waiting if not rank.failure}
        ready = wait(list(by_connection), timeout=max(0.0, timeout_s))
        for connection in ready:
            assert isinstance(connection, Connection)
            _read(by_connection[connection], on_step)
        return bool(ready)

    def _hear_the_others(self, waiting: list[Rank]) -> None:
        deadline = time.monotonic() + GRACE_S
        while any(not rank.failure and rank.result is None for rank in waiting):
            if not self._listen(waiting, deadline - time.monotonic(), lambda step, loss: None):
                return

    def _kill(self) -> None:
        """End every process group: SIGKILL, so that no rank can ignore it; then collect the processes."""
        for rank in self.ranks:
            _kill_group(rank.process.pid)
        for rank in self.ranks:
            rank.process.wait()
            rank.connection.close()


def _pickled(job: Job) -> bytes:
    if getattr(job.loader, "__module__", None) == "__main__":
        raise InputError(
            "the loader is defined in the script that runs: put it into a module, other processes import it"
        )
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise InputError(
            f"the loader cannot be sent to other processes ({fault}): define it at the top of a module"
        ) from None


def _start(job: Job, specification: Path, number: int) -> Rank:
    mine, theirs = Pipe()
    log = job.folder / f"rank{number}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(specification), str(theirs.fileno()), str(number), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    theirs.close()
    return Rank(number=number, name=job.name(number), process=process, connection=mine, log=log)


def _read(rank: Rank, on_step: OnStep) -> None:
    try:
        kind, content = rank.connection.recv()
    except (EOFError, OSError):
        rank.failure = _last_words(rank)
        return
    if kind == STEP:
        on_step(*content)
    elif kind == RESULT:
        rank.result = content
    elif kind == ERROR:
        kind_of_error, words = content
        rank.fault = CALLERS_FAULTS.get(kind_of_error, RunError)
        rank.failure = f"{kind_of_error}: {words}"


def _last_words(rank: Rank) -> str:
    """Why a process ended without a word: its signal or exit status, and the end of its log."""
    try:
        status = rank.process.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        return "closed its pipe and went on"
    log = rank.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-MAX_LINES_SHOWN:]
    said = f"; it said: {' | '.join(log)}" if log else ""
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name}){said}"
    return f"ended with exit status {status}{said}"


def _cause(ranks: list[Rank]) -> PlannerError:
    """The error of the rank that failed first: a consequence is only reported where there is nothing else."""
    failed = [rank for rank in ranks if rank.failure]
    first = min(failed, key=lambda rank: (any(word in rank.failure.lower() for word in CONSEQUENCES), rank.number))
    return first.fault(f"{first.name} failed: {first.failure}")


def _late(waiting: list[Rank], timeout_s: float) -> str:
    names = ", ".join(rank.name for rank in waiting)
    return f"the run did not finish within {timeout_s:g} s; still running: {names}; allow more or run less"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
