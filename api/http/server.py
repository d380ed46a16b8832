"""Running the service with uvicorn."""

from __future__ import annotations

import logging
from ipaddress import ip_address

import uvicorn

from api.http.app import create_app
from api.http.settings import Settings

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5
MAX_HEADER_BYTES = 64 * 1024


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM; then requests get 5 s to end and running solves are killed (and kept queued)."""
    if not _is_loopback(settings.host):
        log.warning("%s is reachable from other machines, and this service asks nobody who they are", settings.host)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
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
