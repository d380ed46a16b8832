"""Is the process alive, can it work, and what has it done."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from api.http.answers import Health
from api.http.metrics import MEDIA_TYPE
from api.http.state import ServiceOf

router = APIRouter(tags=["health"])


@router.get("/livez", operation_id="getLiveness", summary="Whether the process answers")
async def livez() -> Health:
    """Always `ok`: the answer is the message."""
    return Health(status="ok")


@router.get("/readyz", operation_id="getReadiness", summary="Whether plans can be taken")
async def readyz(service: ServiceOf) -> Health:
    """`ok` when the store answers; otherwise a store-busy problem with status 503."""
    await asyncio.to_thread(service.store.counts)
    return Health(status="ok")


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Counters in the Prometheus text format",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(service: ServiceOf) -> Response:
    """Answers by method and status, stored plans by state, the queue, the running solves and their seconds."""
    stored = await asyncio.to_thread(service.store.counts)
    text = service.metrics.text(waiting=service.jobs.num_waiting, running=service.jobs.num_running, stored=stored)
    return Response(text, media_type=MEDIA_TYPE)
