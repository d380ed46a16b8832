"""Plans as jobs: submitted, waited for, read, listed, cancelled, removed; lost workers, full queues, busy stores."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from http_service import assert_problem, request_named, service, wait_for_death

from api.http import state, store
from api.http.answers import PlanJob
from planner import codec
from planner.result import PlanResult, Status

LONG_WAIT = "wait_s=60"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with service(tmp_path, num_solvers=1, queue_size=2, max_attempts=3) as made:
        yield made


class Pipe:
    """Through which a hanging worker tells its process ids and its folder; reading waits until one does."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path

    def read(self) -> tuple[int, int, Path]:
        worker, child, folder = self._path.read_text().split(" ", 2)
        return int(worker), int(child), Path(folder)


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipe:
    monkeypatch.setenv("FAKE_WORKER_PIPE", str(tmp_path / "pipe"))
    return Pipe(tmp_path / "pipe")


def submit(client: TestClient, name: str, query: str = "wait_s=0", **options: Any) -> Any:
    return client.post(f"/v1/plans?{query}", json=request_named(name, **options))


def job_at(client: TestClient, location: str, query: str = LONG_WAIT) -> dict[str, Any]:
    answer = client.get(f"{location}?{query}")
    assert answer.status_code == 200
    job: dict[str, Any] = answer.json()
    return job


def test_a_plan_that_is_there_in_time(client: TestClient) -> None:
    answer = submit(client, "quick", LONG_WAIT)
    assert answer.status_code == 201
    assert codec.decode(PlanResult, answer.json()).report.status is Status.INFEASIBLE
    job = job_at(client, answer.headers["location"])
    assert job["state"] == "succeeded"
    assert job["model"] == "quick"
    assert job["attempts"] == 1
    assert job["result"] == answer.json()
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]


def test_a_plan_that_takes_longer(client: TestClient, pipe: Pipe) -> None:
    answer = submit(client, "hang")
    assert answer.status_code == 202
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["location"] == f"/v1/plans/{answer.json()['id']}"
    pipe.read()
    job = codec.decode(PlanJob, job_at(client, answer.headers["location"], "wait_s=0"))
    assert job.state == "running"
    assert job.result is None
    assert_problem(client.get(f"{answer.headers['location']}/exports/x"), 409, "not-finished")


def test_a_cancelled_plan_leaves_nothing_running(client: TestClient, pipe: Pipe) -> None:
    location = submit(client, "hang").headers["location"]
    worker, child, folder = pipe.read()
    assert folder.is_dir()
    answer = client.post(f"{location}/cancel")
    assert answer.status_code == 200
    assert answer.json()["state"] == "cancelled"
    for pid in (worker, child):
        wait_for_death(pid)
    assert not folder.exists()
    again = client.post(f"{location}/cancel")
    assert again.status_code == 200
    assert again.json()["finished_at"] == answer.json()["finished_at"]
    assert submit(client, "quick", LONG_WAIT).status_code == 201


def test_a_queued_plan_is_cancelled_without_ever_running(client: TestClient, pipe: Pipe) -> None:
    first = submit(client, "hang").headers["location"]
    pipe.read()
    second = submit(client, "hang").headers["location"]
    assert client.post(f"{second}/cancel").json()["state"] == "cancelled"
    client.post(f"{first}/cancel")
    assert submit(client, "quick", LONG_WAIT).status_code == 201
    assert job_at(client, second)["attempts"] == 0


def test_a_finished_plan_cannot_be_cancelled(client: TestClient) -> None:
    location = submit(client, "quick", LONG_WAIT).headers["location"]
    assert_problem(client.post(f"{location}/cancel"), 409, "already-finished")


def test_a_removed_plan_is_gone_and_so_is_its_process(client: TestClient, pipe: Pipe) -> None:
    location = submit(client, "hang").headers["location"]
    worker, child, _ = pipe.read()
    assert client.delete(location).status_code == 204
    for pid in (worker, child):
        wait_for_death(pid)
    assert_problem(client.get(location), 404, "not-found")
    assert_problem(client.delete(location), 404, "not-found")
    assert_problem(client.post(f"{location}/cancel"), 404, "not-found")


def test_a_solve_over_its_limit_is_killed(tmp_path: Path, pipe: Pipe) -> None:
    with service(tmp_path, grace_s=1.0) as client:
        location = submit(client, "hang", time_limit_s=0.5).headers["location"]
        worker, child, folder = pipe.read()
        job = job_at(client, location)
        assert job["state"] == "failed"
        assert job["problem"]["type"] == "/problems/limit-reached"
        for pid in (worker, child):
            wait_for_death(pid)
        assert not folder.exists()


def test_a_worker_that_always_dies_is_tried_three_times(client: TestClient) -> None:
    answer = submit(client, "die", LONG_WAIT)
    assert_problem(answer, 500, "worker-lost")
    job = job_at(client, answer.headers["location"])
    assert (job["state"], job["attempts"]) == ("failed", 3)
    assert job["problem"]["type"] == "/problems/worker-lost"
    assert submit(client, "quick", LONG_WAIT).status_code == 201


def test_a_worker_that_dies_once_is_replaced(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER_MARK", str(tmp_path / "mark"))
    answer = submit(client, "die-once", LONG_WAIT)
    assert answer.status_code == 201
    assert job_at(client, answer.headers["location"])["attempts"] == 2


def test_a_fault_in_the_worker_is_ours(client: TestClient) -> None:
    document = assert_problem(submit(client, "broken", LONG_WAIT), 500, "internal")
    assert "must not be shown" not in document["detail"]


def test_wrong_input_that_only_the_search_sees_leaves_no_row(client: TestClient) -> None:
    answer = submit(client, "wrong", LONG_WAIT)
    assert_problem(answer, 422, "invalid-input", "/workload")
    assert "location" not in answer.headers
    assert client.get("/v1/plans").json()["jobs"] == []


def test_a_solve_may_not_use_all_memory(tmp_path: Path) -> None:
    with service(tmp_path, solve_memory_bytes=2 * 2**30) as client:
        assert_problem(submit(client, "hungry", LONG_WAIT), 503, "out-of-memory")


def test_a_full_queue_refuses(client: TestClient, pipe: Pipe) -> None:
    submit(client, "hang")
    pipe.read()
    accepted = [submit(client, "hang").status_code for _ in range(2)]
    assert accepted == [202, 202]
    refused = submit(client, "hang")
    assert_problem(refused, 503, "queue-full")
    assert int(refused.headers["retry-after"]) > 0
    assert len(client.get("/v1/plans").json()["jobs"]) == 3


def test_a_large_body_is_checked_in_a_process(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "INLINE_BYTES", 10)
    assert submit(client, "quick", LONG_WAIT).status_code == 201
    wrong = request_named("quick")
    wrong["problem"]["graph"]["layers"][0]["id"] = "head"
    assert_problem(client.post("/v1/plans", json=wrong), 422, "invalid-input", "/problem/graph/layers/3/id")


def test_plans_are_listed_by_pages(tmp_path: Path) -> None:
    with service(tmp_path) as client:
        for number in range(5):
            submit(client, f"plan-{number}", LONG_WAIT)
        names, cursor = [], ""
        while cursor is not None:
            page = client.get(f"/v1/plans?limit=2{cursor and '&cursor=' + cursor}").json()
            names.append([job["model"] for job in page["jobs"]])
            cursor = page["next_cursor"]
        assert names == [["plan-4", "plan-3"], ["plan-2", "plan-1"], ["plan-0"]]
        assert all(job["result"] is None for job in page["jobs"])


def test_a_cursor_cannot_be_forged(client: TestClient) -> None:
    for number in range(2):
        submit(client, f"plan-{number}", LONG_WAIT)
    cursor = client.get("/v1/plans?limit=1").json()["next_cursor"]
    forged = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    assert client.get(f"/v1/plans?cursor={cursor}").status_code == 200
    assert_problem(client.get(f"/v1/plans?cursor={forged}"), 422, "invalid-input", "/query/cursor")


def test_a_locked_store_says_so_and_keeps_nothing(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUSY_TIMEOUT_S", 0.0)
    other = sqlite3.connect(tmp_path / "plans.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for answer in (
        submit(client, "quick"),
        client.get("/v1/plans"),
        client.get("/v1/plans/abc"),
        client.get("/readyz"),
    ):
        assert_problem(answer, 503, "store-busy")
        assert int(answer.headers["retry-after"]) > 0
    other.execute("ROLLBACK")
    other.close()
    assert client.get("/v1/plans").json()["jobs"] == []
    assert submit(client, "quick", LONG_WAIT).status_code == 201


def test_a_stopped_service_takes_its_plans_up_again(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path, num_solvers=1) as client:
        location = submit(client, "hang").headers["location"]
        worker, child, folder = pipe.read()
        finished = submit(client, "quick").headers["location"]
    for pid in (worker, child):
        wait_for_death(pid)
    assert not folder.parent.exists()
    with service(tmp_path, num_solvers=1) as client:
        pipe.read()
        job = job_at(client, location, "wait_s=0")
        assert (job["state"], job["attempts"]) == ("running", 1)
        client.post(f"{location}/cancel")
        assert job_at(client, finished)["state"] == "succeeded"


@pytest.mark.parametrize("attempts", [2, 3])
def test_a_plan_that_took_the_service_down_is_not_tried_for_ever(tmp_path: Path, attempts: int) -> None:
    with service(tmp_path) as client:
        location = submit(client, "quick", LONG_WAIT).headers["location"]
    with sqlite3.connect(tmp_path / "plans.sqlite") as left:  # as a killed service would leave it
        left.execute("UPDATE plans SET state = 'running', answer = NULL, attempts = ?", (attempts,))
    left.close()
    with service(tmp_path, max_attempts=3) as client:
        job = job_at(client, location)
    assert (job["state"], job["attempts"]) == (("succeeded", 3) if attempts == 2 else ("failed", 3))
    assert attempts == 2 or job["problem"]["type"] == "/problems/worker-lost"


def test_an_infeasible_result_has_no_export(client: TestClient) -> None:
    location = submit(client, "quick", LONG_WAIT).headers["location"]
    assert_problem(client.get(f"{location}/exports/chrome-trace"), 422, "invalid-input")
