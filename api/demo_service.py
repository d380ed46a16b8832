"""The HTTP service as a process of its own, for the demo: started, waited for, ended, and gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.client import Client
from planner.errors import RunError

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1


@contextmanager
def running_service(folder: Path) -> Iterator[Client]:
    """A client of a fresh service that keeps its plans in `folder`; whatever happens, no process of it is left.

    RunError with the end of its log when it does not come up.
    """
    port, log = _free_port(), folder / "service.log"
    process = _start(port, folder / "plans.sqlite", log)
    try:
        client = Client(f"http://{HOST}:{port}")
        _wait_until_ready(client, process, log)
        yield client
    finally:
        _stop(process)


def is_gone(group: int) -> bool:
    """Whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def child_processes() -> set[int]:
    """Processes that this one started and that are not collected yet, as Linux tells; empty elsewhere."""
    found = set[int]()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(status.parent.name))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _start(port: int, store: Path, log: Path) -> subprocess.Popen[bytes]:
    words = ["serve", "--host", HOST, "--port", str(port), "--workers", "1", "--store", str(store)]
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "api.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_ready(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        if client.is_ready():
            return
        time.sleep(POLL_S)
    tail = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise RunError(f"the service did not become ready: {' / '.join(tail) or 'its log is empty'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the service to end, then end its whole group, in case something of it did not."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if not is_gone(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
