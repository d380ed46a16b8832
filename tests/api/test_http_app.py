"""The edge of the service: every refusal is a problem document, pages need nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from http_service import assert_problem, request_named, service

from api.http.app import create_app
from api.http.settings import Settings, settings_from_environment
from planner.errors import InputError

JSON_HEADERS = {"content-type": "application/json"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with service(tmp_path, max_body_bytes=20_000) as made:
        yield made


def test_unknown_addresses_and_methods(client: TestClient) -> None:
    assert_problem(client.get("/nowhere"), 404, "not-found")
    assert_problem(client.get("/v1/plans/..%2f..%2fetc%2fpasswd"), 404, "not-found")
    assert_problem(client.get("/docs/assets/..%2fcore.py"), 404, "not-found")
    refused = client.put("/v1/plans")
    assert_problem(refused, 405, "method-not-allowed")
    assert refused.headers["allow"] == "GET, POST"
    assert client.put("/v1/plans/abc").headers["allow"] == "DELETE, GET"
    assert_problem(
        client.post("/v1/plans/xyz", headers={"x-http-method-override": "DELETE"}), 405, "method-not-allowed"
    )


def test_other_origins_get_no_permission(client: TestClient) -> None:
    answer = client.options(
        "/v1/plans", headers={"origin": "https://a.example", "access-control-request-method": "POST"}
    )
    assert_problem(answer, 405, "method-not-allowed")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/estimates"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/octet-stream"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_only_plain_json_is_taken(client: TestClient, path: str, headers: dict[str, str]) -> None:
    assert_problem(client.post(path, content=b"{}", headers=headers), 415, "unsupported-media-type")


def test_the_body_is_bounded_whether_announced_or_not(client: TestClient) -> None:
    announced = client.post("/v1/plans", content=b" " * 20_001, headers=JSON_HEADERS)
    assert_problem(announced, 413, "too-large")
    chunks = (b" " * 1000 for _ in range(21))
    assert_problem(client.post("/v1/plans", content=chunks, headers=JSON_HEADERS), 413, "too-large")
    lying = client.post("/v1/plans", content=b"{}", headers={**JSON_HEADERS, "content-length": "1" * 100})
    assert_problem(lying, 413, "too-large")


@pytest.mark.parametrize("body", [b"", b"null", b'{"problem": NaN}', b"{} x", b'{"a": "\xff"}', b"[" * 10_000])
def test_bodies_that_mean_nothing(client: TestClient, body: bytes) -> None:
    assert_problem(client.post("/v1/plans", content=body, headers=JSON_HEADERS), 422, "invalid-input")
    assert client.get("/v1/plans").json()["jobs"] == []


def test_texts_of_the_input_come_back_harmless(client: TestClient) -> None:
    body = json.dumps({"<script>\x1b\ud800" + "x" * 9000: 1}).encode()
    answer = client.post("/v1/plans", content=body, headers=JSON_HEADERS)
    assert_problem(answer, 422, "invalid-input")
    assert b"<" not in answer.content
    assert b"\x1b" not in answer.content
    assert len(answer.content) < 1000


@pytest.mark.parametrize("query", ["limit=-1", "limit=0", "limit=1000000000", "limit=x", "cursor=AAAA", "cursor=é"])
def test_wrong_queries_are_named(client: TestClient, query: str) -> None:
    field = query.partition("=")[0]
    assert_problem(client.get(f"/v1/plans?{query}"), 422, "invalid-input", f"/query/{field}")


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "1e9", "x"])
def test_the_wait_is_bounded(client: TestClient, wait: str) -> None:
    answer = client.post(f"/v1/plans?wait_s={wait}", json=request_named("any"))
    assert_problem(answer, 422, "invalid-input", "/query/wait_s")


def test_our_own_faults_keep_their_words(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr("api.http.store.SqlitePlanStore.get", broken)
    document = assert_problem(client.get("/v1/plans/abc"), 500, "internal")
    assert "secret" not in document["detail"]


def test_health_and_metrics(client: TestClient) -> None:
    assert client.get("/livez").json() == {"status": "ok", "reason": ""}
    assert client.get("/readyz").json()["status"] == "ok"
    client.request("PROPFIND", "/nowhere")
    client.post("/v1/plans", json=request_named("any"))
    lines = client.get("/metrics").text.splitlines()
    assert 'pipeplan_http_answers_total{method="GET",status="200"} 2' in lines
    assert 'pipeplan_http_answers_total{method="other",status="404"} 1' in lines
    assert 'pipeplan_plans{state="succeeded"} 1' in lines
    assert "pipeplan_solves_total 1" in lines
    assert "pipeplan_queue_length 0" in lines


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    references = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert "docs/assets/swagger-ui-bundle.js" in references
    for reference in references:
        assert not re.match(r"[a-z]+:|//", reference) or reference == "data:,"
        if reference != "data:,":
            assert client.get(f"/{reference}").status_code == 200
    assert "//" not in client.get("/docs/assets/start.js").text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert not re.search(r"url\(\s*['\"]?(https?:)?//", client.get("/docs/assets/swagger-ui.css").text)


def test_the_bundle_is_swagger_ui(client: TestClient) -> None:
    answer = client.get("/docs/assets/swagger-ui-bundle.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "SwaggerUIBundle" in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_settings_come_from_the_environment_when_the_app_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings_from_environment(
        {"PIPEPLAN_PORT": "81", "PIPEPLAN_GRACE_S": "2.5", "PIPEPLAN_OTHER": "x"}, host=None
    )
    assert made == Settings(port=81, grace_s=2.5)
    assert settings_from_environment({"PIPEPLAN_PORT": "81"}, port=82).port == 82
    with pytest.raises(InputError, match="PIPEPLAN_PORT is 'x': give a int"):
        settings_from_environment({"PIPEPLAN_PORT": "x"})
    with pytest.raises(InputError, match="num_solvers is 0"):
        settings_from_environment({"PIPEPLAN_NUM_SOLVERS": "0"})
    monkeypatch.setenv("PIPEPLAN_QUEUE_SIZE", "0")
    with pytest.raises(InputError, match="queue_size"):
        create_app()


def test_one_store_has_one_service(tmp_path: Path) -> None:
    with service(tmp_path), pytest.raises(InputError, match="another service uses"), service(tmp_path):
        pass
