"""`pipeplan serve`: the HTTP service."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import Annotated

import typer

from planner.errors import RunError


def command(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port (default: 8000).")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Solves at once (default: 2).")] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="FILE", help="SQLite file of the plans.")] = None,
) -> None:
    """Serve plans over HTTP until interrupted. What is not given comes from PIPEPLAN_* variables, else the default."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise RunError("the service needs fastapi and uvicorn, which are not installed: pip install 'pipeplan[server]'")
    from api.http.server import serve
    from api.http.settings import settings_from_environment

    settings = settings_from_environment(host=host, port=port, num_solvers=workers, database=store)
    with contextlib.suppress(SystemExit, KeyboardInterrupt):  # a signal is how a service ends
        serve(settings)
