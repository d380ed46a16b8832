"""What the routes share: one object per app, reached as a dependency."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from api.http.answers import CheckedRequest
from api.http.bodies import read_body
from api.http.jobs import Jobs
from api.http.limits import Limits
from api.http.metrics import Metrics
from api.http.orders import Outcome, Task, refusal
from api.http.problems import problem_document
from api.http.settings import Settings
from api.http.solving import Solving, WorkerLostError
from api.http.store import PlanStore
from api.http.tasks import check
from planner import codec

INLINE_BYTES = 2**18
"""Bodies up to this size are checked in a thread; larger ones would hold the interpreter lock for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The parts of a running app."""

    settings: Settings
    store: PlanStore
    solving: Solving
    jobs: Jobs
    metrics: Metrics
    short_tasks: asyncio.Semaphore

    async def body_of(self, request: Request) -> bytes:
        """The raw body of a JSON request, within the limits."""
        return await read_body(request, max_bytes=self.settings.max_body_bytes, timeout_s=self.settings.body_timeout_s)

    async def check(self, body: bytes) -> CheckedRequest | Outcome:
        """What a planning request asks for; the refusal when a worker found it wrong, an exception when we did."""
        if len(body) <= INLINE_BYTES:
            return await asyncio.to_thread(check, body, limits_of(self.settings))
        outcome = await self.run(Task.CHECK, body)
        return codec.loads(CheckedRequest, outcome.body) if outcome.ok else outcome

    async def run(self, task: Task, *parts: bytes, format: str = "") -> Outcome:
        """A short task in a worker process; a few at a time, the others wait."""
        async with self.short_tasks:
            try:
                limit_s = self.settings.short_task_limit_s
                return await self.solving.run(task, *parts, limit_s=limit_s, format=format)
            except WorkerLostError:
                detail = "the worker process died (killed, or out of memory): send a smaller problem"
                return refusal(problem_document(500, "worker-lost", detail))


def limits_of(settings: Settings) -> Limits:
    """The request limits among the settings."""
    return Limits(
        max_layers=settings.max_layers,
        max_edges=settings.max_edges,
        max_devices=settings.max_devices,
        max_time_limit_s=settings.max_time_limit_s,
    )


def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


ServiceOf = Annotated[Service, Depends(_service)]
