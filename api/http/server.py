"""Running the service with uvicorn."""

from __future__ import annotations

import contextlib
import logging
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

from api.http.app import create_app
from api.http.settings import Settings
from planner.errors import RunError

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5
READ_HEADER_BYTES = 2 * 2**20
"""Headers up to here are read and, where too large, answered (`api.http.headers`); beyond, the connection is reset."""


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM: requests then get 5 s to end, running solves are killed and kept queued.

    RunError when the service cannot start; the log says why.
    """
    if not _is_loopback(settings.host):
        log.warning("%s is reachable from other machines, and this service asks nobody who they are", settings.host)
    server = uvicorn.Server(server_config(create_app(settings), settings))
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # how uvicorn ends after a signal, or a failed start
        server.run()
    if not server.started:
        raise RunError("the service could not start: its log says why")


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How uvicorn is to run the app."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=READ_HEADER_BYTES,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
        server_header=False,
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
