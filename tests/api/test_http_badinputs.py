"""The bad-input corpus: every document has an allowed outcome, every refusal is small, nothing is run or written."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from http_service import assert_problem, real_service
from neutral import our_field, request_bytes, stage_compute_ms

import api

CASES = json.loads((Path(__file__).parents[1] / "badinputs" / "documents.json").read_text(encoding="utf-8"))
MARKER = Path("/tmp/badinput_marker")  # the corpus names this path; nothing may ever make it
MAX_PROBLEM_BYTES = 64 * 1024
HONEST = ("optimal", "feasible", "limit")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with real_service(tmp_path_factory.mktemp("service")) as made:
        yield made


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_every_document_has_an_allowed_outcome(client: TestClient, case: dict[str, Any]) -> None:
    before = _num_plans(client)
    body = request_bytes(case["doc"])
    answer = client.post("/v1/plans?wait_s=100", content=body, headers={"content-type": "application/json"})
    assert b"<script>" not in answer.content
    assert b"\x1b" not in answer.content
    assert not MARKER.exists()
    assert client.get("/livez").status_code == 200
    reasons = [_objection(case, outcome, answer) for outcome in case["expect"]]
    assert "" in reasons, f"{case['fault']}: {reasons}; {answer.text[:1000]}"
    assert _num_plans(client) == before + (answer.status_code == 201)


def _num_plans(client: TestClient) -> int:
    samples = [line for line in client.get("/metrics").text.splitlines() if line.startswith("pipeplan_plans{")]
    return sum(int(line.rpartition(" ")[2]) for line in samples)


def _objection(case: dict[str, Any], outcome: dict[str, Any], answer: Any) -> str:
    """Why the answer is not that outcome; empty when it is."""
    if outcome["class"] == "reject":
        return _objection_to_refusal(outcome, answer)
    if answer.status_code != 201:
        return f"status {answer.status_code}"
    result = answer.json()
    status = result["report"]["status"]
    if outcome["class"] == "infeasible":
        return _objection_to_infeasibility(outcome["because"], status, result["report"]["infeasibility"])
    if status not in HONEST or result["plan"] is None:
        return f"search ended {status}"
    return _objection_to_optimum(case["doc"], outcome.get("optimum"), result["plan"])


def _objection_to_refusal(outcome: dict[str, Any], answer: Any) -> str:
    if answer.status_code not in outcome["status"]:
        return f"status {answer.status_code}, wanted {outcome['status']}"
    if len(answer.content) > MAX_PROBLEM_BYTES:
        return f"{len(answer.content)} bytes of refusal"
    if answer.headers["content-type"] != "application/problem+json":
        return f"a refusal of type {answer.headers['content-type']}"
    document = answer.json()
    named = f"{document['pointer']} {document['detail']}"
    if outcome.get("field") and answer.status_code != 413 and our_field(outcome["field"]) not in named:
        return f"{our_field(outcome['field'])} is not named"
    missing = [name for name in outcome.get("names", []) if name not in named]
    return f"{missing} not named" if missing else ""


def _objection_to_infeasibility(because: str, status: str, reason: dict[str, Any] | None) -> str:
    if status != "infeasible" or reason is None:
        return f"search ended {status}"
    words = because.replace(":", " ").replace("d0-d1", "").split()
    told = f"{reason['constraint']} {reason['message']}"
    missing = [word for word in words if word not in told]
    return f"{missing} not in the reason: {told}" if missing else ""


def _objection_to_optimum(document: dict[str, Any], optimum: float | None, plan: dict[str, Any]) -> str:
    if optimum is None:
        return ""
    slowest = max(stage_compute_ms(document, stage["layers"]) for stage in plan["stages"])
    return "" if slowest == pytest.approx(optimum) else f"slowest stage takes {slowest} ms, optimum {optimum}"


class _Trap:
    """Unpickling it would make the marker."""

    def __reduce__(self) -> Any:
        return open, (str(MARKER), "w")


UPLOADS = {
    "pickle": pickle.dumps(_Trap()),
    "zip": b"PK\x03\x04" + b"\x00" * 60,
    "safetensors with a length of 2^63": (2**63).to_bytes(8, "little") + b"{}",
    "onnx": b"\x08\x01\x12\x00",
    "gzip": b"\x1f\x8b\x08\x00" + b"\x00" * 60,
}


@pytest.mark.parametrize("name", UPLOADS)
def test_files_are_not_taken(client: TestClient, name: str) -> None:
    for media_type in ("application/octet-stream", "multipart/form-data; boundary=x", "application/zip"):
        answer = client.post("/v1/plans", content=UPLOADS[name], headers={"content-type": media_type})
        assert_problem(answer, 415, "unsupported-media-type")
    answer = client.post("/v1/plans", content=UPLOADS[name], headers={"content-type": "application/json"})
    assert_problem(answer, 422, "invalid-input")
    assert not MARKER.exists()


def test_the_service_has_no_means_to_run_what_it_is_sent() -> None:
    forbidden = {"pickle", "torch", "importlib.util", "runpy", "marshal", "shelve", "code"}
    for path in Path(api.__path__[0]).glob("http/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module not in forbidden, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile", "__import__"}, path
