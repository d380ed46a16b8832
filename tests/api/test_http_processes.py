"""A real server in a process of its own: killed, stopped, and spoken to rudely."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_service import request_named, wait_for_death
from neutral import request_bytes

from api.client import Client
from api.http.app import _scratch_folder
from planner.result import Status

HERE = Path(__file__).parent
SERVER = HERE / "fake_server.py"
DOCUMENTS = HERE.parent / "badinputs" / "documents.json"
SOCKET_TIMEOUT_S = 30.0


@contextmanager
def server(folder: Path, worker: str = "fake_worker.py") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process of a service and its port. Connections wait in the socket until it is up."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    with listening:
        process = subprocess.Popen(
            [sys.executable, str(SERVER), str(folder / "plans.sqlite"), str(listening.fileno()), HERE / worker],
            pass_fds=[listening.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setenv("FAKE_WORKER_PIPE", str(path))
    return path


def submit_hanging(port: int, pipe: Path) -> tuple[str, list[int]]:
    """Where the job is, and the ids of its worker and of the worker's child."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOCKET_TIMEOUT_S)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/plans?wait_s=0", json.dumps(request_named("hang")), headers)
    answer = connection.getresponse()
    assert answer.status == 202
    location = answer.headers["location"]
    connection.close()
    return location, [int(text) for text in pipe.read_text().split()[:2]]


def state_of(port: int, location: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOCKET_TIMEOUT_S)
    connection.request("GET", location)
    state: str = json.loads(connection.getresponse().read())["state"]
    connection.close()
    return state


def test_kill_9_leaves_no_process_and_loses_no_job(tmp_path: Path, pipe: Path) -> None:
    with server(tmp_path) as (process, port):
        location, pids = submit_hanging(port, pipe)
        process.kill()
        for pid in pids:
            wait_for_death(pid)
    scratch = _scratch_folder(tmp_path / "plans.sqlite")
    left = list(scratch.iterdir())
    assert len(left) == 1
    with server(tmp_path) as (process, port):
        again = [int(text) for text in pipe.read_text().split()[:2]]
        assert state_of(port, location) == "running"
        assert left[0] not in list(scratch.iterdir())
        process.send_signal(signal.SIGTERM)
        process.wait(SOCKET_TIMEOUT_S)
        for pid in again:
            wait_for_death(pid)
    assert not scratch.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_solves(tmp_path: Path, pipe: Path, number: signal.Signals) -> None:
    with server(tmp_path) as (process, port):
        _, pids = submit_hanging(port, pipe)
        process.send_signal(number)
        process.wait(SOCKET_TIMEOUT_S)
        for pid in pids:
            wait_for_death(pid)
    assert not _scratch_folder(tmp_path / "plans.sqlite").exists()


def test_a_killed_worker_takes_its_children_along_and_is_replaced(tmp_path: Path, pipe: Path) -> None:
    with server(tmp_path) as (_, port):
        location, (worker, child) = submit_hanging(port, pipe)
        os.kill(worker, signal.SIGKILL)
        wait_for_death(child)
        second = [int(text) for text in pipe.read_text().split()[:2]]
        assert state_of(port, location) == "running"
        assert second[0] != worker


def children_of(pid: int) -> dict[int, str]:
    """Process id and name of the children of a process."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            head, _, tail = (folder / "stat").read_text().rpartition(") ")
            if int(tail.split()[1]) == pid:
                found[int(folder.name)] = head.partition("(")[2]
    return found


def submit_hard(port: int) -> str:
    """Where the job of a MILP that takes far longer than the test is."""
    case = next(c for c in json.loads(DOCUMENTS.read_text()) if c["id"] == "feasible-hard-milp-2s")
    values = json.loads(request_bytes(_thrice(case["doc"])))
    values["options"] |= {"optimizer": "milp", "time_limit_s": 100}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOCKET_TIMEOUT_S)
    connection.request("POST", "/v1/plans?wait_s=0", json.dumps(values), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 202, answer.read()
    location = answer.headers["location"]
    connection.close()
    return location


def _thrice(document: dict[str, Any]) -> dict[str, Any]:
    """The graph of a neutral document three times over."""
    nodes = [{**node, "id": f"{node['id']}.{i}"} for i in range(3) for node in document["nodes"]]
    edges = [{"src": f"{e['src']}.{i}", "dst": f"{e['dst']}.{i}"} for i in range(3) for e in document["edges"]]
    return {**document, "nodes": nodes, "edges": edges}


def solver_processes(server_pid: int, port: int, location: str, solver: str) -> list[int]:
    """The worker and, where it has one, its solver; waits (in requests that wait) until they are there."""
    for _ in range(300):
        workers = list(children_of(server_pid))
        solvers = [pid for worker in workers for pid, name in children_of(worker).items() if name == solver]
        if workers and (solvers or not solver):
            return workers + solvers
        assert state_of(port, f"{location}?wait_s=0.1") in ("queued", "running")
    raise AssertionError(f"no {solver} was started")


@pytest.mark.parametrize("how", ["kill -9", "cancel"])
def test_no_solver_outlives_the_service_or_its_job(tmp_path: Path, how: str) -> None:
    with server(tmp_path, "cbc_worker.py") as (process, port):
        location = submit_hard(port)
        pids = solver_processes(process.pid, port, location, "cbc")
        assert len(pids) == 2
        if how == "cancel":
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOCKET_TIMEOUT_S)
            connection.request("POST", f"{location}/cancel", headers={"content-type": "application/json"})
            assert json.loads(connection.getresponse().read())["state"] == "cancelled"
            connection.close()
        else:
            process.kill()
        for pid in pids:
            wait_for_death(pid)


def said(port: int, text: bytes) -> bytes:
    """Everything that the server answers to raw bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=SOCKET_TIMEOUT_S) as connection:
        connection.sendall(text)
        parts: list[bytes] = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_rude_requests_are_answered_and_closed(tmp_path: Path) -> None:
    submit = b"POST /v1/plans HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with server(tmp_path) as (_, port):
        assert b" 413 " in said(port, submit + b"content-length: 10000000000\r\n\r\n")
        slow = said(port, submit + b"content-length: 100\r\n\r\n{")
        assert b" 408 " in slow
        assert b"/problems/slow-request" in slow
        assert b" 431 " in said(port, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-a: " + b"A" * 2**20 + b"\r\n\r\n")
        assert b" 200 " in said(port, b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")


def test_the_client_gets_a_plan_from_a_real_server(tmp_path: Path) -> None:
    with server(tmp_path) as (_, port):
        client = Client(f"http://127.0.0.1:{port}")
        assert client.is_ready()
        assert client.plan(request_named("quick")).report.status is Status.INFEASIBLE
