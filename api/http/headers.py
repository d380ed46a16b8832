"""A bound on the size of request headers, as an answer rather than a reset connection."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.faults import problem_response
from api.http.problems import problem_document

MAX_HEADER_BYTES = 64 * 1024


class HeaderLimit:
    """ASGI middleware: 431 for requests whose target and headers are over 64 KiB.

    The server itself reads more than that before it resets the connection (`api.http.server`), so that the client
    can read why.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _size(scope) > MAX_HEADER_BYTES:
            detail = f"the headers have more than {MAX_HEADER_BYTES} bytes: send fewer"
            response = problem_response(problem_document(431, "too-large", detail), {"Connection": "close"})
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _size(scope: Scope) -> int:
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    return target + sum(len(name) + len(value) for name, value in scope["headers"])
