"""The app: settings in, a FastAPI application out. Nothing happens at import."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from api.http import openapi
from api.http.faults import add_fault_handlers
from api.http.headers import HeaderLimit
from api.http.jobs import Jobs
from api.http.metrics import AnswerCounter, Metrics
from api.http.routes import catalogue, estimates, health, pages, plans
from api.http.settings import Settings, settings_from_environment
from api.http.solving import WORKER, Solving
from api.http.state import Service, limits_of
from api.http.store import SqlitePlanStore


def create_app(settings: Settings | None = None, *, worker: tuple[str, ...] = WORKER) -> FastAPI:
    """The service by its settings (from the environment where they are not given).

    `worker` is the command of a solver process. The store is opened when the app starts; InputError is raised then
    if another service holds it.
    """
    chosen = settings or settings_from_environment()
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with _running(chosen, metrics, worker) as service:
            app.state.service = service
            yield

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    app.add_middleware(HeaderLimit)
    app.add_middleware(AnswerCounter, metrics=metrics)
    add_fault_handlers(app)
    for routes in (plans, estimates, catalogue, health, pages):
        app.include_router(routes.router)
    _describe_once(app)
    return app


@asynccontextmanager
async def _running(settings: Settings, metrics: Metrics, worker: tuple[str, ...]) -> AsyncIterator[Service]:
    """The parts of the service between start and stop; no process is left at the end."""
    store = await asyncio.to_thread(SqlitePlanStore, settings.database_path)
    try:
        solving = Solving(
            scratch=_scratch_folder(settings.database_path),
            limits=limits_of(settings),
            memory_bytes=settings.solve_memory_bytes,
            command=worker,
        )
        solving.sweep()
        jobs = Jobs(store, solving, settings, metrics)
        await jobs.start()
        try:
            yield Service(
                settings=settings,
                store=store,
                solving=solving,
                jobs=jobs,
                metrics=metrics,
                short_tasks=asyncio.Semaphore(settings.num_solvers),
            )
        finally:
            await jobs.stop()
            solving.clear()
    finally:
        store.close()


def _scratch_folder(database: Path) -> Path:
    """A temporary folder that belongs to this user and this store, the same at every start (so that it is swept)."""
    mark = hashlib.sha256(str(database.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"pipeplan-{os.getuid()}-{mark}"


def _describe_once(app: FastAPI) -> None:
    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.describe(app)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
