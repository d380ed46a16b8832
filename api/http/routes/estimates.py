"""Estimates: a plan that the client brings, priced and checked."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.http.faults import outcome_response
from api.http.orders import Task
from api.http.state import ServiceOf

router = APIRouter(prefix="/v1/estimates", tags=["estimates"])


@router.post("", operation_id="createEstimate", summary="Price and check a plan", response_class=Response)
async def create_estimate(request: Request, service: ServiceOf) -> Response:
    """What one iteration takes, what each stage needs, and every rule that the plan breaks."""
    return outcome_response(await service.run(Task.ESTIMATE, await service.body_of(request)))
