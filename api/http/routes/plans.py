"""Plans: submitted, read, listed, cancelled, removed and exported."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.http.answers import PlanJob, State
from api.http.cursors import issue_cursor, read_cursor
from api.http.faults import outcome_response
from api.http.orders import JSON, Outcome, Task
from api.http.problems import MEDIA_TYPE, RETRY_AFTER_S, RefusalError, json_bytes
from api.http.state import Service, ServiceOf
from api.http.store import PlanRecord

router = APIRouter(prefix="/v1/plans", tags=["plans"])

DEFAULT_WAIT_S = 30.0
MAX_WAIT_S = 120.0
DEFAULT_PAGE = 50
MAX_PAGE = 200
SHOWN = tuple(field.name for field in fields(PlanJob) if field.name not in ("result", "problem"))

PlanId = Annotated[str, Path(description="The id that the service gave the plan", max_length=64)]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="Seconds to wait for the result")]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Number of jobs on a page")]
Cursor = Annotated[str | None, Query(max_length=100, description="`next_cursor` of the page before")]


@router.post("", operation_id="createPlan", summary="Ask for a plan", status_code=201, response_class=Response)
async def create_plan(request: Request, service: ServiceOf, wait_s: Wait = DEFAULT_WAIT_S) -> Response:
    """201 with the PlanResult when it is there within `wait_s`; else 202 with the job, to be read at `Location`.

    That no plan fits is a result too: its report has the status `infeasible` and says what is missing.
    """
    body = await service.body_of(request)
    checked = await service.check(body)
    if isinstance(checked, Outcome):
        return outcome_response(checked)
    record = await service.jobs.submit(body, checked)
    await service.jobs.wait(record.id, wait_s)
    record = await _found(service, record.id)
    refused = _refusal(record)
    if refused is not None and refused.status < 500:  # wrong input that only the search could see: nothing is kept
        await service.jobs.remove(record.id)
        return outcome_response(refused)
    return _submitted(record)


@router.get("", operation_id="listPlans", summary="List plans, the newest first")
async def list_plans(service: ServiceOf, limit: PageSize = DEFAULT_PAGE, cursor: Cursor = None) -> Response:
    """A page of jobs without their results."""
    secret = await asyncio.to_thread(service.store.secret)
    before = None if cursor is None else read_cursor(cursor, secret)
    records = await asyncio.to_thread(service.store.page, limit + 1, before)
    shown = records[:limit]
    following = issue_cursor(shown[-1].sequence, secret) if len(records) > limit else None
    jobs = b",".join(_job_bytes(record) for record in shown)
    return Response(b'{"jobs":[' + jobs + b'],"next_cursor":' + json_bytes(following) + b"}", media_type=JSON)


@router.get("/{plan_id}", operation_id="getPlan", summary="Read a plan and how far it is")
async def get_plan(plan_id: PlanId, service: ServiceOf, wait_s: Wait = 0.0) -> Response:
    """The job, with its result when it succeeded and its problem when it failed; waits for the end up to `wait_s`."""
    await service.jobs.wait(plan_id, wait_s)
    return _job(await _found(service, plan_id))


@router.post("/{plan_id}/cancel", operation_id="cancelPlan", summary="Stop a plan's search")
async def cancel_plan(plan_id: PlanId, service: ServiceOf) -> Response:
    """The cancelled job; its process is gone. 409 when it ended otherwise before."""
    record = await service.jobs.cancel(plan_id)
    if record is None:
        raise _unknown()
    return _job(record)


@router.delete(
    "/{plan_id}", operation_id="deletePlan", summary="Remove a plan", status_code=204, response_class=Response
)
async def delete_plan(plan_id: PlanId, service: ServiceOf) -> Response:
    """Nothing is left of it; a running search is stopped first."""
    if not await service.jobs.remove(plan_id):
        raise _unknown()
    return Response(status_code=204)


@router.get("/{plan_id}/exports/{format}", operation_id="exportPlan", summary="A plan in an engine's own format")
async def export_plan(plan_id: PlanId, format: Annotated[str, Path(max_length=64)], service: ServiceOf) -> Response:
    """The text of an exporter of the catalogue; 422 naming the stage when that engine cannot express the plan."""
    record = await _found(service, plan_id)
    if record.state != State.SUCCEEDED or record.answer is None:
        raise RefusalError(409, "not-finished", f"the plan has {record.state.value}: there is no result to export")
    outcome = await service.run(Task.EXPORT, record.request, record.answer, format=format)
    return outcome_response(outcome, headers={"Content-Disposition": "attachment"} if outcome.ok else None)


async def _found(service: Service, plan_id: str) -> PlanRecord:
    record = await asyncio.to_thread(service.store.get, plan_id)
    if record is None:
        raise _unknown()
    return record


def _unknown() -> RefusalError:
    return RefusalError(404, "not-found", "there is no plan of that id")


def _submitted(record: PlanRecord) -> Response:
    """The answer to a submission, by what has become of it so far."""
    location = {"Location": f"/v1/plans/{record.id}"}
    if record.state in (State.QUEUED, State.RUNNING):
        headers = {**location, "Retry-After": str(RETRY_AFTER_S)}
        return Response(_job_bytes(record), 202, headers, media_type=JSON)
    if record.state == State.CANCELLED or record.answer is None:
        raise RefusalError(409, "cancelled", f"plan {record.id} was cancelled while it was waited for")
    refused = _refusal(record)
    if refused is not None:
        return outcome_response(refused, headers=location)
    return Response(record.answer, 201, location, media_type=JSON)


def _refusal(record: PlanRecord) -> Outcome | None:
    """The problem that a failed job ended with."""
    if record.state != State.FAILED or record.answer is None:
        return None
    return Outcome(status=json.loads(record.answer)["status"], body=record.answer, media_type=MEDIA_TYPE)


def _job(record: PlanRecord) -> Response:
    return Response(_job_bytes(record), media_type=JSON)


def _job_bytes(record: PlanRecord) -> bytes:
    """A PlanJob document; the answer is JSON already and is put in as it is."""
    shown = {name: getattr(record, name) for name in SHOWN}
    member = b"result" if record.state == State.SUCCEEDED else b"problem"
    other = b"problem" if record.state == State.SUCCEEDED else b"result"
    answer = record.answer or b"null"
    return json_bytes(shown)[:-1] + b',"' + member + b'":' + answer + b',"' + other + b'":null}'
