"""What the tests of the HTTP service share: an app on a temporary store, with real or played searches."""

from __future__ import annotations

import copy
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from api.http.app import create_app
from api.http.examples import PROBLEM
from api.http.settings import Settings
from api.http.solving import WORKER

PLAYED = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))
DEATH_TIMEOUT_S = 30.0


@contextmanager
def service(folder: Path, *, worker: tuple[str, ...] = PLAYED, **settings: Any) -> Iterator[TestClient]:
    """A client of a running app; its solves are played unless `worker` says otherwise."""
    chosen = Settings(database=str(folder / "plans.sqlite"), **settings)
    with TestClient(create_app(chosen, worker=worker), raise_server_exceptions=False) as client:
        yield client


@contextmanager
def real_service(folder: Path, **settings: Any) -> Iterator[TestClient]:
    """A client of an app that really searches."""
    with service(folder, worker=WORKER, **settings) as client:
        yield client


def request_named(name: str, **options: Any) -> dict[str, Any]:
    """A good planning request whose graph has a name (the played worker acts by it)."""
    problem = copy.deepcopy(PROBLEM)
    problem["graph"]["name"] = name
    return {"problem": problem, "options": {"time_limit_s": 20, **options}}


def assert_problem(response: Any, status: int, slug: str, pointer: str | None = None) -> dict[str, Any]:
    """The answer is a problem document of that kind; returns it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert set(document) == {"type", "title", "status", "detail", "pointer"}
    assert document["type"] == f"/problems/{slug}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    assert len(response.content) <= 64 * 1024
    if pointer is not None:
        assert document["pointer"] == pointer
    return document


def wait_for_death(pid: int) -> None:
    """Return when the process is gone (or a zombie that its parent has yet to reap); fail after half a minute."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], DEATH_TIMEOUT_S)
        assert ready, f"process {pid} is still alive"
    finally:
        os.close(descriptor)
