"""One task in one process of its own: started, fed, bounded in time, and gone afterwards with all its children.

The child leads its own session, so that one signal reaches the solvers that it starts. Its standard input stays open
as a lifeline: when this process dies, however, the child reads the end of it and kills its own group
(`api.http.worker`). Its temporary files live in a folder that is removed with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from api.http.limits import Limits
from api.http.orders import Order, Outcome, Task, refusal
from api.http.problems import problem_document

log = logging.getLogger(__name__)

WORKER = (sys.executable, "-m", "api.http.worker")
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
ERRORS_FILE = "stderr.txt"
MAX_LOGGED_CHARACTERS = 2000


class WorkerLostError(Exception):
    """The worker died without an answer: killed from outside, or by the kernel for memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """Runs tasks, each with `command`. `scratch` is the folder that holds the private folders of the running ones."""

    scratch: Path
    limits: Limits
    memory_bytes: int = 0
    command: tuple[str, ...] = WORKER

    async def run(self, task: Task, *parts: bytes, limit_s: float, format: str = "") -> Outcome:
        """The outcome of `task`; a limit-reached problem when `limit_s` passes. WorkerLostError when it dies.

        Cancelling this coroutine kills the process and its children before it returns.
        """
        order = Order(
            task=task,
            part_bytes=tuple(len(part) for part in parts),
            limit_s=limit_s,
            memory_bytes=self.memory_bytes,
            limits=self.limits,
            format=format,
        )
        try:
            async with asyncio.timeout(limit_s), self._process() as process:
                return await _exchange(process, order, parts)
        except TimeoutError:
            detail = f"no result within {limit_s:g} s: give a longer time_limit_s or a smaller problem"
            return refusal(problem_document(503, "limit-reached", detail))

    def sweep(self) -> None:
        """Make the scratch folder, private and empty. Only the owner of the store may call this."""
        self.clear()
        self.scratch.mkdir(mode=0o700, parents=True)

    def clear(self) -> None:
        """Remove the scratch folder and whatever a killed service left in it."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            process = await _start(self.command, folder)
            try:
                yield process
            finally:
                await _end(process, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


async def _start(command: tuple[str, ...], folder: Path) -> asyncio.subprocess.Process:
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    with (folder / ERRORS_FILE).open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=PACKAGE_ROOT,
            env=environment,
            start_new_session=True,
        )


async def _exchange(process: asyncio.subprocess.Process, order: Order, parts: tuple[bytes, ...]) -> Outcome:
    """Feed the worker and read its answer. Its standard input stays open: closing it would kill it."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.writelines((json.dumps(asdict(order)).encode(), b"\n", *parts))
        await process.stdin.drain()
        answer = await process.stdout.read()
    except ConnectionError:
        answer = b""
    first, _, body = answer.partition(b"\n")
    if not first:
        raise WorkerLostError(f"the worker ended with status {await process.wait()} and no answer")
    status, media_type = first.decode().split(" ", 1)
    return Outcome(status=int(status), body=body, media_type=media_type)


async def _end(process: asyncio.subprocess.Process, folder: Path) -> None:
    """Kill the whole group (solvers may outlive the worker), reap the worker, keep its last words in the log."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        log.debug("process group %d is gone already", process.pid)
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()
    words = (folder / ERRORS_FILE).read_text(encoding="utf-8", errors="replace")[-MAX_LOGGED_CHARACTERS:]
    if words.strip():
        log.warning("worker %d said: %r", process.pid, words)
