"""The client of training jobs, against a real server whose searches are played."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from http_service import PLAYED, request_named

from api import client as client_module
from api.client import Client
from api.http.app import create_app
from api.http.examples import PROBLEM
from api.http.server import server_config
from api.http.settings import Settings
from planner import codec
from planner.errors import InputError, InternalError, LimitError, PlannerError, RunError
from planner.options import SearchOptions
from planner.problem import Problem
from planner.result import Status


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where a service with one solver and a queue of one listens."""
    settings = Settings(database=str(tmp_path / "plans.sqlite"), num_solvers=1, queue_size=1)
    running = uvicorn.Server(server_config(create_app(settings, worker=PLAYED), settings))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        running.should_exit = True
        thread.join()


def test_a_problem_is_planned(address: str) -> None:
    result = Client(address).plan(codec.decode(Problem, PROBLEM), SearchOptions(time_limit_s=10.0))
    assert result.report.status is Status.INFEASIBLE
    assert result.planner_version == "played"


def test_a_request_document_is_planned(address: str) -> None:
    assert Client(f"{address}/").plan(request_named("quick")).report.optimizer == "played"


def test_wrong_input_has_its_pointer(address: str) -> None:
    with pytest.raises(InputError, match="time_limit_s") as caught:
        Client(address).plan(request_named("quick", time_limit_s=-1.0))
    assert caught.value.pointer == "/options/time_limit_s"


def test_a_long_solve_is_waited_for_and_then_cancelled(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER_PIPE", str(tmp_path / "nobody-reads"))
    monkeypatch.setattr(client_module, "WAIT_S", 0.05)
    (tmp_path / "nobody-reads").touch()
    with pytest.raises(LimitError, match="cancelled"):
        Client(address).plan(request_named("hang"), timeout_s=0.5)
    _, page, _ = Client(address)._call("GET", "/v1/plans")
    assert [job["state"] for job in page["jobs"]] == ["cancelled"]


def test_a_polled_failure_is_raised(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "WAIT_S", 0.0)
    with pytest.raises(InternalError, match="our fault"):
        Client(address).plan(request_named("broken"))


def test_a_polled_success_is_returned(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "WAIT_S", 0.0)
    assert Client(address).plan(request_named("quick")).planner_version == "played"


def test_a_service_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}")
    assert not client.is_ready()
    with pytest.raises(RunError, match="cannot be reached"):
        client.catalogue()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b'{"type": "/problems/queue-full", "detail": "full"}', LimitError),
        (413, b'{"type": "/problems/too-large", "detail": "big"}', InputError),
        (500, b'{"type": "/problems/worker-lost", "detail": "lost"}', RunError),
        (422, b'{"type": "/problems/invalid-input", "detail": "wrong", "pointer": "/a"}', InputError),
        (502, b"<html>", RunError),
    ],
)
def test_problems_become_errors_of_ours(status: int, body: bytes, kind: type[PlannerError]) -> None:
    assert type(client_module._error(status, body)) is kind


def test_an_address_must_be_http() -> None:
    with pytest.raises(InputError, match="http"):
        Client("file:///etc/passwd")
